"""Classes of examples, and what each weighs in the training loss, as by `class_weight` of Keras' `fit`."""

from collections.abc import Mapping, Sequence

import numpy as np

from trainer.common.errors import ConfigError
from trainer.common.suggest import nearest
from trainer.config.schema import BALANCED, Train
from trainer.data.spec import STRING, Leaf, Spec

KEY = "train.class_weight"
MOST = 100_000
"""Classes."""
UNWEIGHTED = ("x", "y")
HOW = "it must be one class per example: a whole number, or one-hot numbers"


def label_of(spec: Spec) -> int:
    """The leaf that holds an example's class; ConfigError if there is none.

    As in Keras, a list of several numbers is one-hot.
    """
    y = spec.parts.get("y", ())
    if len(y) != 1 or not isinstance(spec.structure[1], int):
        listed = ", ".join(map(str, y[:5])) or "missing"
        raise ConfigError(f"{KEY}: y is {listed}; class weights need a single y. Fix: give sample weights, (x, y, sample_weight)")
    if len(y[0].shape) > 1 or y[0].varies or y[0].dtype == STRING:
        raise ConfigError(f"{KEY}: y is {y[0]}; {HOW}. Fix: give sample weights, (x, y, sample_weight)")
    return int(spec.structure[1])


def numbers(y: np.ndarray) -> np.ndarray:
    """The class `[n]` int64 of each example of `y`, `[n]` or `[n, classes]`."""
    if y.ndim > 1 and y.shape[-1] != 1:
        y = y.argmax(axis=-1)
    with np.errstate(invalid="ignore"):
        return np.rint(y.reshape(len(y))).astype(np.int64)


def weights(train: Train, names: Sequence[str]) -> np.ndarray:
    """Weights `[classes]` float32 by class's number; a number beyond the end weighs 1.

    Raises:
        ConfigError: a class that there is not.
    """
    given = train.class_weight
    if given == BALANCED:
        if not train.class_counts:
            raise ConfigError(f"{KEY}: {BALANCED} needs train.class_counts; train.yml counts them when it plans a run")
        return balanced(train.class_counts)
    assert isinstance(given, Mapping)
    places = {_place(name, names): weight for name, weight in given.items()}
    table = np.ones(max(len(names), 1 + max(places)), np.float32)
    table[list(places)] = list(places.values())
    return table


def balanced(counts: Sequence[int]) -> np.ndarray:
    """All examples / (classes * those of the class), over the classes that occur, as in scikit-learn; the others weigh 1."""
    present = sum(count > 0 for count in counts)
    return np.array([sum(counts) / (present * count) if count else 1 for count in counts], np.float32)


def _place(name: str, names: Sequence[str]) -> int:
    """The number of a class given by name or, where that is no name, by number."""
    if name in names:
        return list(names).index(name)
    most = len(names) or MOST
    if name.isdecimal() and int(name) < most:
        return int(name)
    if names:
        raise ConfigError(f"{KEY}: {name} is no class{nearest(name, names)}; there are: {', '.join(names[:20])}, or 0 to {most - 1}")
    raise ConfigError(f"{KEY}: {name} is no class; the classes of this dataset have no names. Fix: give numbers from 0 to {most - 1:,}")


class Weighing:
    """Multiplies the weights of examples with those of their classes."""

    def __init__(self, spec: Spec, table: np.ndarray):
        """Weigh examples of that spec by a `table` as from `weights`; ConfigError if they have no single class."""
        self._label = label_of(spec)
        self._table = np.append(table, np.float32(1))
        given = spec.structure[2] if len(spec.structure) > len(UNWEIGHTED) else None
        if not isinstance(given, int | None):
            listed = ", ".join(map(str, spec.parts["sample_weight"][:5]))
            raise ConfigError(f"{KEY}: sample_weight is {listed}; it must be a single array. Fix: leave one of them out")
        self._given = given
        leaves = list(spec.leaves)
        if given is None:
            leaves.append(Leaf("sample_weight", "float32", ()))
        else:
            leaves[given] = Leaf("sample_weight", "float32", leaves[given].shape)
        self.spec = Spec([*spec.structure[:2], len(spec.leaves) if given is None else given], tuple(leaves))
        """Spec of examples with weights."""

    def __call__(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The values of the leaves of several examples, with their weights."""
        classes, last = numbers(values[self._label]), len(self._table) - 1
        factors = self._table[np.where((classes >= 0) & (classes < last), classes, last)]
        if self._given is None:
            return [*values, factors]
        weights = values[self._given]
        weighed = weights.astype(np.float32) * factors.reshape(-1, *[1] * (weights.ndim - 1))
        return [weighed if number == self._given else value for number, value in enumerate(values)]
