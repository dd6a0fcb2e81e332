"""PowerSGD's passes over large matrices and the momentum update, fused in compiled loops on the CPU.

With TensorFlow ops, each product and each sum reads and writes the whole matrix again. Here a step reads it three times in total.

Factors are kept transposed, `[rank, rows]` and `[rank, columns]`, so that inner loops run along memory. What all workers must
compute identically is compiled without `fastmath`, so that every CPU gives the same bits. What concerns only one worker uses it.
"""

import numpy as np
from numba import njit

from trainer.reduction import kernel_cache
from trainer.reduction.method import NEGLIGIBLE

kernel_cache.use()

SWEEPS = 30
"""Most sweeps of Jacobi's method; it needs a handful."""
LANES = 64
"""Partial sums that `_dot` keeps in parallel."""
BLOCK = 512
"""Floats per factor that are turned at once: with all factors they fit into the fastest cache."""


@njit(inline="always")
def _combine(target: np.ndarray, keep: float | np.float32, times: float | np.float32, factors: np.ndarray, rows: np.ndarray) -> None:
    """Multiply `target` by `keep` and add `times` · `factors` · `rows`, four rows per pass; inlined, it follows its caller's `fastmath`."""
    count = factors.size
    whole, pairs, kept = count // 4 * 4, count // 2 * 2, keep
    for k in range(0, whole, 4):
        f0, f1, f2, f3 = times * factors[k], times * factors[k + 1], times * factors[k + 2], times * factors[k + 3]
        for i in range(target.size):
            target[i] = kept * target[i] + ((f0 * rows[k, i] + f1 * rows[k + 1, i]) + (f2 * rows[k + 2, i] + f3 * rows[k + 3, i]))
        kept = np.float32(1)
    for k in range(whole, pairs, 2):
        f0, f1 = times * factors[k], times * factors[k + 1]
        for i in range(target.size):
            target[i] = kept * target[i] + (f0 * rows[k, i] + f1 * rows[k + 1, i])
        kept = np.float32(1)
    for k in range(pairs, count):
        factor = times * factors[k]
        for i in range(target.size):
            target[i] = kept * target[i] + factor * rows[k, i]
        kept = np.float32(1)


@njit(nogil=True, cache=True, fastmath=True)
def project(
    first: int,
    last: int,
    error: np.ndarray,
    gradient: np.ndarray,
    before: int,
    sent_left: np.ndarray,
    sent_right: np.ndarray,
    right: np.ndarray,
    left: np.ndarray,
) -> None:
    """In rows `first` to `last`: subtract from `error` what was sent last, add the gradient, and multiply by `right` into `left`.

    `error` `[rows, columns]` is what has not been sent yet. `gradient` lacks the first `before` rows. `sent_left` `[factors, rows]`
    times `sent_right` `[factors, columns]` is what was sent last. `right` is `[rank, columns]`, `left` `[rank, rows]`.
    """
    for row in range(first, last):
        added = gradient[row - before]
        for column in range(error.shape[1]):
            error[row, column] += added[column]
        _combine(error[row], np.float32(1), np.float32(-1), sent_left[:, row], sent_right)
        for k in range(right.shape[0]):
            total = np.float32(0)
            for column in range(error.shape[1]):
                total += error[row, column] * right[k, column]
            left[k, row] = total


@njit(nogil=True, cache=True, fastmath=True)
def reproject(first: int, last: int, error: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """Add to `right` `[factors, columns]` the product of `left` `[factors, rows]` and `error`, over rows `first` to `last`."""
    whole = first + (last - first) // 4 * 4
    for row in range(first, whole, 4):
        for k in range(left.shape[0]):
            f0, f1, f2, f3 = left[k, row], left[k, row + 1], left[k, row + 2], left[k, row + 3]
            for column in range(error.shape[1]):
                right[k, column] += (f0 * error[row, column] + f1 * error[row + 1, column]) + (
                    f2 * error[row + 2, column] + f3 * error[row + 3, column]
                )
    for row in range(whole, last):
        for k in range(left.shape[0]):
            factor = left[k, row]
            for column in range(error.shape[1]):
                right[k, column] += factor * error[row, column]


@njit(nogil=True, cache=True)
def momentum_low_rank(
    first: int,
    last: int,
    left: np.ndarray,
    right: np.ndarray,
    velocity: np.ndarray,
    weights: np.ndarray,
    momentum: float,
    rate: float,
    decay: float,
    pull: float,
) -> None:
    """In rows `first` to `last`: update `velocity` and `weights` by a step along the gradient `leftᵀ right`.

    `decay` times the weight is subtracted from the weight, `pull` times the weight from its velocity.
    """
    for row in range(first, last):
        _combine(velocity[row], momentum, -rate, left[:, row], right)
        if pull != 0.0:
            for column in range(right.shape[1]):
                velocity[row, column] -= pull * weights[row, column]
        for column in range(right.shape[1]):
            weights[row, column] = weights[row, column] - decay * weights[row, column] + velocity[row, column]


@njit(nogil=True, cache=True)
def momentum_dense(
    first: int,
    last: int,
    gradient: np.ndarray,
    velocity: np.ndarray,
    weights: np.ndarray,
    momentum: float,
    rate: float,
    decay: float,
    pull: float,
) -> None:
    """As `momentum_low_rank`, for an uncompressed gradient `[rows, columns]`."""
    for row in range(first, last):
        moved, kept, added = velocity[row], weights[row], gradient[row]
        for column in range(moved.size):
            moved[column] = momentum * moved[column] - rate * added[column] - pull * kept[column]
            kept[column] = kept[column] - decay * kept[column] + moved[column]


@njit(nogil=True, cache=True)
def _dot(a: np.ndarray, b: np.ndarray) -> float:
    # Parallel sums: with a single one each addition waits for the one before.
    sums = np.zeros(LANES)
    whole = a.size // LANES * LANES
    for first in range(0, whole, LANES):
        x, y = a[first : first + LANES], b[first : first + LANES]
        for i in range(LANES):
            sums[i] += np.float64(x[i]) * y[i]
    total = 0.0
    for i in range(LANES):
        total += sums[i]
    for i in range(whole, a.size):
        total += np.float64(a[i]) * b[i]
    return total


@njit(nogil=True, cache=True)
def orthonormalise(left: np.ndarray, first: int) -> None:
    """Make the rows of `left` `[factors, rows]` from `first` on orthonormal, also to the rows before, in place.

    A row that lies in the others' span becomes 0. Gram-Schmidt, twice per row ("twice is enough": Giraud, Langou,
    Rozložník 2005, doi:10.1016/j.camwa.2005.08.009), with sums in float64.
    """
    for k in range(first, left.shape[0]):
        row = left[k]
        before = np.sqrt(_dot(row, row))
        for _ in range(2):
            for other in range(k):
                share, direction = np.float32(_dot(left[other], row)), left[other]
                for i in range(row.size):
                    row[i] -= share * direction[i]
        after = np.sqrt(_dot(row, row))
        scale = 1.0 / after if after > NEGLIGIBLE * before else 0.0
        for i in range(row.size):
            row[i] = np.float32(row[i] * scale)


@njit(nogil=True, cache=True)
def principal(right: np.ndarray) -> np.ndarray:
    """Orthogonal `[factors, factors]` that makes the rows of `right` `[factors, columns]` orthogonal, the longest first.

    Jacobi's method in float64 (Golub, Van Loan, Matrix Computations, section 8.5).
    """
    count = right.shape[0]
    products, turned = np.zeros((count, count)), np.zeros((count, count))
    for i in range(count):
        turned[i, i] = 1.0
        for j in range(count):
            products[i, j] = _dot(right[i], right[j])
    size = 0.0
    for i in range(count):
        size += products[i, i]
    for _ in range(SWEEPS):
        rest = 0.0
        for i in range(count):
            for j in range(i + 1, count):
                rest += abs(products[i, j])
                if products[i, j] != 0.0:
                    _turn_two(products, turned, i, j)
        if rest <= 1e-14 * size:
            break
    return _largest_first(products, turned)


@njit(nogil=True, cache=True)
def _largest_first(products: np.ndarray, turned: np.ndarray) -> np.ndarray:
    # By hand: NumPy's sort takes two seconds to compile.
    count, result = products.shape[0], np.zeros(turned.shape)
    for i in range(count):
        place = 0
        for j in range(count):
            if products[j, j] > products[i, i] or (products[j, j] == products[i, i] and j < i):
                place += 1
        for j in range(count):
            result[place, j] = turned[i, j]
    return result


@njit(nogil=True, cache=True)
def _turn_two(products: np.ndarray, turned: np.ndarray, i: int, j: int) -> None:
    half = (products[j, j] - products[i, i]) / (2.0 * products[i, j])
    tangent = (1.0 if half >= 0 else -1.0) / (abs(half) + np.sqrt(half * half + 1.0))
    cosine = 1.0 / np.sqrt(tangent * tangent + 1.0)
    sine = tangent * cosine
    for k in range(products.shape[0]):
        a, b = products[k, i], products[k, j]
        products[k, i], products[k, j] = cosine * a - sine * b, sine * a + cosine * b
    for k in range(products.shape[0]):
        a, b = products[i, k], products[j, k]
        products[i, k], products[j, k] = cosine * a - sine * b, sine * a + cosine * b
        a, b = turned[i, k], turned[j, k]
        turned[i, k], turned[j, k] = cosine * a - sine * b, sine * a + cosine * b


@njit(nogil=True, cache=True)
def turn(by: np.ndarray, factors: np.ndarray) -> None:
    """Multiply `factors` `[factors, size]` from the left by `by` `[factors, factors]`, in place."""
    count, size = factors.shape
    shares, kept = by.astype(np.float32), np.empty((count, BLOCK), np.float32)
    for first in range(0, size, BLOCK):
        block = factors[:, first : min(first + BLOCK, size)]
        for k in range(count):
            for i in range(block.shape[1]):
                kept[k, i] = block[k, i]
        for j in range(count):
            _combine(block[j], np.float32(0), np.float32(1), shares[j], kept)
