"""Input of a training's steps: the examples of a dataset, changed by the user's function, weighed by class, in pairs for mixup."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.config.schema import Config
from trainer.data import class_weight
from trainer.data.columns import Columns
from trainer.data.spec import Spec, mapped
from trainer.data.user_augment import UserAugment

if TYPE_CHECKING:
    from trainer.data.batch import Examples


def spec_of(config: Config, spec: Spec) -> Spec:
    """The spec of what a step is fed; `spec` is that of the dataset."""
    return _in_pairs(weighed(config, spec)) if config.augment.mixup else weighed(config, spec)


def weighed(config: Config, spec: Spec) -> Spec:
    """The spec of examples with the weights that follow from `train.class_weight`."""
    return spec if config.train.class_weight is None else class_weight.Weighing(spec, np.ones(0, np.float32)).spec


def _in_pairs(spec: Spec) -> Spec:
    """The spec of examples that each have a partner: in place of every leaf, a list of the example's and the partner's."""
    structure = mapped(lambda number: [2 * number, 2 * number + 1], spec.structure)
    return Spec(structure, tuple(leaf for leaf in spec.leaves for _ in range(2)))


class Feeding:
    """How the examples of a dataset become what a step is fed."""

    def __init__(self, config: Config, names: Sequence[str], spec: Spec):
        """Prepare for examples of that spec, whose classes have these names.

        Raises:
            ConfigError: classes that there are not, or a function of the user's own that fails.
        """
        self._examples, self.spec = spec, spec_of(config, spec)
        self._rows = UserAugment(config.data.augment, spec, config.data.loaders) if config.data.augment else None
        weighs = config.train.class_weight is not None
        self._weighing = class_weight.Weighing(spec, class_weight.weights(config.train, names)) if weighs else None
        self.paired = config.augment.mixup > 0
        self._bucket = config.data.bucket

    def lengths(self, examples: "Examples", indices: np.ndarray) -> np.ndarray | None:
        """Lengths `[len(indices)]` by which examples are put into buckets; None if they are not."""
        every = examples.lengths() if self._bucket > 1 and isinstance(examples, Columns) else None
        return None if every is None else every[indices]

    def longest(self, examples: "Examples", indices: np.ndarray) -> np.ndarray:
        """Lengths to which the examples of a step are padded, `[len(spec.varying)]` int32."""
        return examples.longest(indices) if isinstance(examples, Columns) else np.zeros(0, np.int32)

    def gather(self, examples: "Examples", indices: np.ndarray, sides: np.ndarray, seeds: Callable[[], np.ndarray]) -> list[Any]:
        """The values of the leaves of examples, padded to `sides`; `seeds` gives `[len(indices), 2]`, to draw their changes with."""
        if self._rows is not None:
            data = self._rows.gather(examples, indices, seeds(), sides.tolist())
        else:
            data = examples.gather(indices, sides.tolist()) if isinstance(examples, Columns) else examples.gather(indices)
        values = self._examples.unpack(data)
        return values if self._weighing is None else self._weighing(values)
