"""The model of a run directory on the control node, and its predictor."""

import math
from dataclasses import dataclass
from pathlib import Path

from control.common import configurations
from trainer.checkpoint import starting_weights
from trainer.config import schema as configs
from trainer.data.spec import Leaf, Spec, of_images
from trainer.evaluation.predict import Predictor, build
from trainer.rundir import layout
from trainer.rundir.launch_record import LaunchRecord


def values_of(leaf: Leaf) -> int:
    """Count of numbers per example in an output."""
    return math.prod(side or 0 for side in leaf.shape)


@dataclass(frozen=True)
class Trained:
    """Model of a run, as its directory describes it."""

    run: Path
    config: configs.Config
    classes: tuple[str, ...]
    spec: Spec
    """Spec of the examples that the model was trained on."""
    image_size: tuple[int, ...] | None
    """Height, width, channels; None: the model takes columns."""

    @classmethod
    def of(cls, run: Path) -> "Trained":
        """Read a run directory on the control node."""
        config, dataset = configurations.build(configurations.load(run / "config.yml")), LaunchRecord.read(run).dataset
        size = None if "spec" in dataset else tuple(config.data.image_size)
        spec = Spec.from_json(dataset["spec"]) if size is None else of_images(size)
        return cls(run, config, tuple(dataset["classes"]), spec, size)

    def predictor(self) -> Predictor:
        """The predictor, with initial weights."""
        return build(self.config, len(self.classes), self.spec)

    def snapshot(self, epoch: int) -> Predictor:
        """The predictor with the weights of an epoch.

        Raises:
            LockstepError: the snapshot is damaged.
        """
        predictor = self.predictor()
        starting_weights.load_snapshot(predictor.model, layout.snapshot_path(self.run, epoch))
        return predictor
