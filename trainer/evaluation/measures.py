"""Errors of a model's outputs: for classes a confusion matrix, for numbers a histogram of errors, chosen by the output's loss."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.rundir.schemas import LARGEST, LARGEST_SIDE, MOST_MISTAKES

SPARSE, ONE_HOT = ("SparseCategoricalCrossentropy",), ("CategoricalCrossentropy", "CategoricalFocalCrossentropy")
BINARY = ("BinaryCrossentropy", "BinaryFocalCrossentropy")
OF_NUMBERS = (
    *("MeanSquaredError", "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredLogarithmicError"),
    *("Huber", "LogCosh", "Poisson"),
)
MOST_CLASSES = 1000
"""Limit of an output's classes; the confusion matrix has the square."""
MOST_ERRORS = 2**22
"""Kept in memory; of more, every k-th row's."""
PROBABILITY_BINS = 10
"""Number of bins of equal width that compare predicted probabilities with observed frequencies."""
LONGEST_NAME = 80
BINS = 40
TAIL = 0.5
"""Percent of the errors on either side that the histogram only counts."""


@dataclass(frozen=True)
class Classes:
    """The output is one of `count` classes."""

    count: int
    threshold: float | None = None
    """Above it, a single number means the second of two classes; None: there is a number per class, and the largest decides."""

    def of_outputs(self, outputs: np.ndarray) -> np.ndarray:
        """Classes `[n]` of outputs `[n, count]`, or with a threshold `[n]` or `[n, 1]`."""
        if self.threshold is None:
            return outputs.argmax(axis=-1)
        return (outputs.reshape(len(outputs)) > self.threshold).astype(np.int64)

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """Probabilities `[n]` of the second of two classes, of single numbers `[n]` or `[n, 1]`: logits if the threshold is 0."""
        values = outputs.reshape(len(outputs)).astype(np.float64)
        if self.threshold == 0:
            return 0.5 * (1 + np.tanh(0.5 * values))
        return np.clip(values, 0, 1)

    def confidences(self, outputs: np.ndarray) -> np.ndarray:
        """Probabilities `[n]` of the predicted classes; outputs that are not probabilities are taken for logits."""
        if self.threshold is not None:
            second = self.probabilities(outputs)
            return np.maximum(second, 1 - second)
        values = outputs.astype(np.float64)
        if (values >= 0).all() and np.allclose(values.sum(axis=-1), 1, atol=1e-3):
            return values.max(axis=-1)
        return 1 / np.exp(values - values.max(axis=-1, keepdims=True)).sum(axis=-1)

    def of_targets(self, targets: np.ndarray) -> np.ndarray:
        """Classes `[n]` of targets: numbers of classes `[n]` or `[n, 1]`, or one-hot `[n, count]`."""
        if targets.shape[1:] == (self.count,):
            return targets.argmax(axis=-1)
        if self.threshold is not None:
            return (targets.reshape(len(targets)) > 0.5).astype(np.int64)
        return targets.reshape(len(targets)).astype(np.int64)


@dataclass(frozen=True)
class Numbers:
    """The output is `size` numbers per example."""

    size: int


Goal = Classes | Numbers


def goal(loss: Any, output: tuple[int | None, ...], target: tuple[int | None, ...]) -> Goal | None:
    """Goal of an output; None unless a loss of Keras' and the shapes, without the batch dimension, determine one.

    Args:
        loss: a Keras loss, or one that wraps a function.
        output: shape of the output.
        target: shape of the values that the output is compared with.
    """
    return _goal(_kinds(loss), bool(getattr(loss, "from_logits", False)), output, target)


def loss_name(loss: Any) -> str:
    """A loss's class, or its function."""
    return str(getattr(_function(loss), "__name__", type(loss).__name__))[:LONGEST_NAME]


def _goal(kinds: set[str], logits: bool, output: tuple[int | None, ...], target: tuple[int | None, ...]) -> Goal | None:
    if None in output or None in target:
        return None
    one, single = (output[0] if len(output) == 1 else 0) or 0, ((), (1,))
    if kinds & {*BINARY}:
        return Classes(2, 0.0 if logits else 0.5) if output in single and target in single else None
    if (kinds & {*SPARSE} and target in single) or (kinds & {*ONE_HOT} and target == output):
        return Classes(one) if 2 <= one <= MOST_CLASSES else None
    sides, others = ([side for side in shape if side != 1] for shape in (output, target))
    return Numbers(int(np.prod(np.array(sides, np.int64)))) if kinds & {*OF_NUMBERS} and sides == others else None


def _kinds(loss: Any) -> set[str]:
    """The names of a loss's classes; of a function, the name that a class would have."""
    function = _function(loss)
    if function is not None:
        return {"".join(word.capitalize() for word in getattr(function, "__name__", "").split("_"))}
    return {kind.__name__ for kind in type(loss).__mro__}


def _function(loss: Any) -> Any:
    """The function that a loss only wraps."""
    return getattr(loss, "fn", None) if type(loss).__name__ == "LossFunctionWrapper" else None


def judges(goals: Sequence[Goal], count: int, classes: Sequence[str]) -> "list[Confusion | Errors]":
    """A judge for each goal, of this many examples, whose classes may have names."""
    most = MOST_ERRORS // max(1, len(goals))
    return [Confusion(goal, classes) if isinstance(goal, Classes) else Errors(goal, count, most) for goal in goals]


class Confusion:
    """Counts examples by their class and the predicted one."""

    def __init__(self, goal: Classes, classes: Sequence[str]):
        """The classes are numbered if these are no names of theirs."""
        self._goal = goal
        self._names = list(classes) if len(classes) == goal.count else [str(number) for number in range(goal.count)]
        self.matrix = np.zeros((goal.count, goal.count), np.int64)
        self._calibration = Calibration() if goal.threshold is not None else None
        self._mistakes, self._seen = list[Mistake](), 0

    def see(self, targets: np.ndarray, outputs: np.ndarray, pictures: np.ndarray | None = None) -> None:
        """Take a batch into account, with its `pictures` `[n, height, width, 1 or 3]` if it has any; no-class targets are left out."""
        classes, predicted = self._goal.of_targets(targets), self._goal.of_outputs(outputs)
        known = (classes >= 0) & (classes < self._goal.count)
        np.add.at(self.matrix, (classes[known], predicted[known]), 1)
        if self._calibration is not None:
            self._calibration.see(classes[known], self._goal.probabilities(outputs)[known])
        if pictures is not None:
            self._mistakes += self._wrong(np.flatnonzero(known & (classes != predicted)), classes, predicted, outputs, pictures)
            self._mistakes = sorted(self._mistakes, key=lambda one: (-one.probability, one.example))[:MOST_MISTAKES]
        self._seen += len(classes)

    def _wrong(
        self, rows: np.ndarray, classes: np.ndarray, predicted: np.ndarray, outputs: np.ndarray, pictures: np.ndarray
    ) -> "list[Mistake]":
        """The most confident ones of a batch's wrong `rows`."""
        sure = self._goal.confidences(outputs)
        rows = rows[np.isfinite(sure[rows])]
        most = rows[np.argsort(-sure[rows], kind="stable")][:MOST_MISTAKES].tolist()
        # A view of a picture would keep its whole batch in memory.
        return [Mistake(self._seen + row, int(classes[row]), int(predicted[row]), float(sure[row]), pictures[row].copy()) for row in most]

    def result(self) -> dict[str, Any]:
        """`classes` and `confusion`; of a probability, `calibration`; of pictures, the most confident `mistakes`."""
        if not self.matrix.any():
            return {"why": f"no target is one of the {self._goal.count} classes"}
        more = {} if self._calibration is None else self._calibration.result()
        more |= {"mistakes": [one.result() for one in self._mistakes]} if self._mistakes else {}
        return {"classes": self._names, "confusion": self.matrix.tolist(), **more}


@dataclass(frozen=True)
class Mistake:
    """A picture that was taken for another class."""

    example: int
    """Its place among the test examples, from 0."""
    of: int
    taken_for: int
    probability: float
    """As the model sees it, of the class that it was taken for."""
    picture: np.ndarray

    def result(self) -> dict[str, Any]:
        """As JSON, with a thumbnail of bytes `[height, width, channels]`, whose rows are texts in Base64."""
        small = _thumbnail(self.picture)
        rows = [base64.b64encode(row.tobytes()).decode() for row in small]
        places = {"example": self.example, "of": self.of, "taken_for": self.taken_for}
        return {**places, "probability": round(self.probability, 6), "shape": list(small.shape), "rows": rows}


def _thumbnail(picture: np.ndarray) -> np.ndarray:
    """A picture `[height, width, channels]` as bytes, reduced by a whole factor to `LARGEST_SIDE` at most.

    Numbers that are no bytes are stretched from black to white.
    """
    values = np.nan_to_num(picture.astype(np.float64))
    if picture.dtype != np.uint8:
        values = (values - values.min()) * (255 / max(1e-12, values.max() - values.min()))
    factor = -(-max(values.shape[:2]) // LARGEST_SIDE)
    starts = [np.arange(0, side, factor) for side in values.shape[:2]]
    sums = np.add.reduceat(np.add.reduceat(values, starts[0], axis=0), starts[1], axis=1)
    heights, widths = (np.diff([*begun, side]) for begun, side in zip(starts, values.shape[:2], strict=True))
    return np.round(sums / np.outer(heights, widths)[..., np.newaxis]).astype(np.uint8)


class Calibration:
    """Compares predicted probabilities with how often they come true.

    Expected calibration error: Naeini et al., 2015, "Obtaining well calibrated probabilities using Bayesian binning".
    """

    def __init__(self) -> None:
        """Nothing is seen yet."""
        self._sums = np.zeros((3, PROBABILITY_BINS))
        """Sums per bin: examples, their probabilities, examples of the second class."""
        self._squares = 0.0

    def see(self, classes: np.ndarray, probabilities: np.ndarray) -> None:
        """Take classes 0 or 1 and probabilities `[n]` of class 1 into account; those that are no number are left out."""
        known = np.isfinite(probabilities)
        classes, probabilities = classes[known], probabilities[known]
        bins = np.minimum((probabilities * PROBABILITY_BINS).astype(np.int64), PROBABILITY_BINS - 1)
        for row, weights in enumerate((np.ones(len(bins)), probabilities, classes)):
            self._sums[row] += np.bincount(bins, weights, PROBABILITY_BINS)
        self._squares += float(((probabilities - classes) ** 2).sum())

    def result(self) -> dict[str, Any]:
        """`calibration`: per bin `counts`, mean `predicted` and `observed` share; expected calibration `error`, `brier` score."""
        counts, predicted, observed = self._sums
        total = counts.sum()
        if not total:
            return {}
        means = [np.round(part / np.maximum(counts, 1), 6).tolist() for part in (predicted, observed)]
        error = float(np.abs(predicted - observed).sum() / total)
        figures = {"error": round(error, 6), "brier": round(self._squares / float(total), 6)}
        return {"calibration": {"counts": counts.astype(np.int64).tolist(), "predicted": means[0], "observed": means[1], **figures}}


class Errors:
    """Keeps prediction minus target."""

    def __init__(self, goal: Numbers, count: int, most: int):
        """Keep at most this many errors."""
        self._every = max(1, -(-count * goal.size // most))
        self._seen = 0
        self._kept: list[np.ndarray] = []

    def see(self, targets: np.ndarray, outputs: np.ndarray, pictures: np.ndarray | None = None) -> None:  # noqa: ARG002 - as `Confusion`
        """Take a batch into account."""
        count = len(outputs)
        rows = slice(-self._seen % self._every, None, self._every)
        self._kept.append((outputs.reshape(count, -1)[rows].astype(np.float64) - targets.reshape(count, -1)[rows]).ravel())
        self._seen += count

    def result(self) -> dict[str, Any]:
        """`errors`: a histogram and its figures."""
        every = np.concatenate(self._kept)
        errors = every[np.isfinite(every)]
        if not len(errors) or np.abs(errors).max() > LARGEST:
            return {"why": "no error is a finite number" if not len(errors) else f"an error is larger than {LARGEST:g}"}
        low, high = np.percentile(errors, [TAIL, 100 - TAIL])
        if high - low <= 1e-9 * np.abs(errors).max():
            low, high = low - max(1e-6, abs(low) / 10), high + max(1e-6, abs(high) / 10)
        counts, size = np.histogram(errors, BINS, (low, high))[0], np.abs(errors)
        figures = {
            "low": low,
            "high": high,
            "mean": errors.mean(),
            "mean_absolute": size.mean(),
            "median_absolute": np.median(size),
            "absolute_95": np.percentile(size, 95),
            "largest": size.max(),
        }
        beyond = {"below": int((errors < low).sum()), "above": int((errors > high).sum())}
        named = {name: float(f"{value:.6g}") for name, value in figures.items()}
        return {"errors": {**named, "counts": counts.tolist(), **beyond, "values": len(errors), "not_finite": len(every) - len(errors)}}
