"""Refusal of non-finite numbers: a loss or a weight that became NaN or infinite."""

import math
from typing import TYPE_CHECKING

import numpy as np

from trainer.common.errors import Diverged
from trainer.config import schedule
from trainer.engine.job import Job
from trainer.step.step_sums import StepSums

if TYPE_CHECKING:
    from trainer.engine.base import Engine


class FiniteCheck:
    """Check that raises Diverged with the step and a fix; it is off if a callback ends the training at a NaN."""

    def __init__(self, job: Job, engine: "Engine", off: bool):
        """Take the run and its weights before the first step; `off`: a callback checks instead."""
        self._config, self._counts, self._engine, self._off = job.config, job.counts, engine, off
        # A layer may hold non-finite values from the start, such as a mask of -inf.
        self._numbers = [bool(np.isfinite(array).all()) for array in engine.read(engine.weights)]

    def check_losses(self, step: int, sums: StepSums, rates: np.ndarray) -> None:
        """Check the losses of the steps after `step`, with their learning rates. Other metrics may be NaN without ending the run."""
        names, metrics = self._engine.results.columns, sums.metrics
        losses = [column for column, name in enumerate(names) if name.endswith("loss")]
        bad = np.argwhere(~np.isfinite(metrics[:, losses]))
        if len(bad) and not self._off:
            index, column = int(bad[0][0]), losses[bad[0][1]]
            rate = float(rates[min(index, len(rates) - 1)])
            raise Diverged(f"the {names[column]} became {metrics[index, column]} at step {step + index + 1} with {self._fix(rate)}")

    def check(self, step: int, value: float, what: str) -> None:
        """Check a result of the last update, `step`: that step's own loss was computed with the weights before the update."""
        if not math.isfinite(value) and not self._off:
            rate = schedule.learning_rate(self._config, self._counts, (step - 1) / self._counts.steps_per_epoch)
            raise Diverged(f"{what} became {value} after step {step} with {self._fix(float(rate))}")

    def check_weights(self, step: int) -> None:
        """Check the weights after `step`, except those that were not finite from the start."""
        arrays = self._engine.read(self._engine.weights)
        largest = (np.abs(array).max(initial=0) for array, number in zip(arrays, self._numbers, strict=True) if number)
        self.check(step, float(np.max([0.0, *largest])), "a weight")

    def _fix(self, rate: float) -> str:
        how = "in compile(optimizer=...)" if self._engine.rate is not None else f"-e set=optimizer.learning_rate={rate / 10:g}"
        lower = f"learning rate {rate:g}; lower it ({how}) under another run name, or see whether the plan warns of NaN in the data"
        narrow = self._engine.choice.name == "half" and self._config.reduction.dtype == "float16"
        return f"{lower}. Or a gradient was too large for float16: reduction.dtype=bfloat16" if narrow else lower
