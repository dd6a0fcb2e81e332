"""PowerSGD's passes over large matrices and the momentum update, fused, in compiled loops on the CPU.

In TensorFlow's ops each product and each sum reads and writes the whole matrix anew, and products with a
matrix of two columns run at a tenth of the memory's speed; here a step reads it three times in all.

Factors are kept transposed, `[rank, rows]` and `[rank, columns]`, so that inner loops run along memory.
What all workers must compute alike (orthonormalise, momentum) is compiled without the liberties of
`fastmath`: every processor gives the same bits. What only concerns one worker takes them.
"""

import numpy as np
from numba import njit

from trainer.reduction import NEGLIGIBLE, kernel_cache

kernel_cache.use()


@njit(nogil=True, cache=True, fastmath=True)
def project(
    first: int,
    last: int,
    error: np.ndarray,
    gradient: np.ndarray,
    sent_left: np.ndarray,
    sent_right: np.ndarray,
    right: np.ndarray,
    left: np.ndarray,
) -> None:
    """In rows `first` to `last`: subtract from `error` what was sent last, add the gradient, and multiply with `right`.

    Args:
        first: row.
        last: row after the last.
        error: `[rows, columns]`, updated: what has not been sent yet, with this gradient.
        gradient: `[rows, columns]`.
        sent_left: `[rank, rows]`, with `sent_right` the product that this worker sent last.
        sent_right: `[rank, columns]`.
        right: `[rank, columns]`.
        left: `[rank, rows]`, the result.
    """
    for row in range(first, last):
        values, added = error[row], gradient[row]
        for column in range(values.size):
            values[column] += added[column]
        for k in range(right.shape[0]):
            factor, sent = sent_left[k, row], sent_right[k]
            for column in range(values.size):
                values[column] -= factor * sent[column]
        for k in range(right.shape[0]):
            total, direction = np.float32(0), right[k]
            for column in range(values.size):
                total += values[column] * direction[column]
            left[k, row] = total


@njit(nogil=True, cache=True, fastmath=True)
def reproject(first: int, last: int, error: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """Add to `right` `[rank, columns]` the product of `left` `[rank, rows]` and `error`, of rows `first` to `last`."""
    for row in range(first, last):
        values = error[row]
        for k in range(left.shape[0]):
            factor, total = left[k, row], right[k]
            for column in range(values.size):
                total[column] += factor * values[column]


@njit(nogil=True, cache=True)
def momentum_low_rank(
    first: int,
    last: int,
    left: np.ndarray,
    right: np.ndarray,
    velocity: np.ndarray,
    weights: np.ndarray,
    updated: np.ndarray,
    momentum: float,
    rate: float,
    decay: float,
) -> None:
    """In rows `first` to `last`: `velocity` and `updated` weights after a step along the gradient `leftᵀ right`."""
    for row in range(first, last):
        moved, old, new = velocity[row], weights[row], updated[row]
        for column in range(moved.size):
            moved[column] *= momentum
        for k in range(left.shape[0]):
            factor, direction = rate * left[k, row], right[k]
            for column in range(moved.size):
                moved[column] -= factor * direction[column]
        for column in range(moved.size):
            new[column] = old[column] - decay * old[column] + moved[column]


@njit(nogil=True, cache=True)
def momentum_dense(
    first: int,
    last: int,
    gradient: np.ndarray,
    velocity: np.ndarray,
    weights: np.ndarray,
    updated: np.ndarray,
    momentum: float,
    rate: float,
    decay: float,
) -> None:
    """The same for a gradient `[rows, columns]` that is not compressed."""
    for row in range(first, last):
        moved, old, new, added = velocity[row], weights[row], updated[row], gradient[row]
        for column in range(moved.size):
            moved[column] = momentum * moved[column] - rate * added[column]
            new[column] = old[column] - decay * old[column] + moved[column]


@njit(nogil=True, cache=True)
def _dot(a: np.ndarray, b: np.ndarray) -> float:
    # Eight sums side by side: a single one waits for each addition before the next.
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    whole = a.size // 8 * 8
    for i in range(0, whole, 8):
        s0 += np.float64(a[i]) * b[i]
        s1 += np.float64(a[i + 1]) * b[i + 1]
        s2 += np.float64(a[i + 2]) * b[i + 2]
        s3 += np.float64(a[i + 3]) * b[i + 3]
        s4 += np.float64(a[i + 4]) * b[i + 4]
        s5 += np.float64(a[i + 5]) * b[i + 5]
        s6 += np.float64(a[i + 6]) * b[i + 6]
        s7 += np.float64(a[i + 7]) * b[i + 7]
    for i in range(whole, a.size):
        s0 += np.float64(a[i]) * b[i]
    return ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))


@njit(nogil=True, cache=True)
def orthonormalise(left: np.ndarray) -> None:
    """Make the rows of `left` `[rank, rows]` orthonormal, in place; one that lies in the others' span becomes 0.

    Gram-Schmidt, each row twice ("twice is enough": Giraud, Langou, Rozložník 2005,
    doi:10.1016/j.camwa.2005.08.009), with sums in float64.
    """
    for k in range(left.shape[0]):
        row = left[k]
        before = np.sqrt(_dot(row, row))
        for _ in range(2):
            for other in range(k):
                share, direction = _dot(left[other], row), left[other]
                for i in range(row.size):
                    row[i] = np.float32(row[i] - share * direction[i])
        after = np.sqrt(_dot(row, row))
        scale = 1.0 / after if after > NEGLIGIBLE * before else 0.0
        for i in range(row.size):
            row[i] = np.float32(row[i] * scale)
