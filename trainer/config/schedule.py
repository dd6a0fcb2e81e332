"""Exact step counts, and the learning rate at each step. Pure arithmetic."""

import math
from dataclasses import dataclass

from trainer.config.schema import Config


@dataclass(frozen=True)
class Counts:
    """Exact sizes of a run (images and steps)."""

    workers: int
    train_images: int
    validation_images: int
    global_batch: int
    steps_per_epoch: int
    epochs: int
    total_steps: int
    scaled_for: int | None = None
    """Workers by which `schedule.scaling` scales the learning rate, if others than `workers`."""
    held_out: int | None = None
    """Images held out for validation, if these are more than `validation_images`."""

    @property
    def first_train(self) -> int:
        """Place of the first training image in the manifest's order, after all that are held out."""
        return self.held_out or self.validation_images

    def epoch_of(self, step: int) -> int:
        """The epoch, from 1, that the step after `step` finished steps belongs to."""
        return step // self.steps_per_epoch + 1


def counts(config: Config, workers: int, train_files: int, held_out: int | None = None, scaled_for: int | None = None) -> Counts:
    """Sizes that follow from a configuration, the number of workers and the files in `train/`.

    When fewer workers go on, the global batch stays, and with it the learning rate: that of `scaled_for` workers.

    A dataset may itself set some files aside for validation (`held_out`), which overrides `data.validation_split`.
    Without `train.steps_per_epoch`, an epoch sees every training image once, and its last step takes what is left.
    """
    held_out = held_out or _validation_count(train_files, config.data.validation_split)
    images = _limited(train_files - held_out, config.data.limit_train)
    validation = _limited(held_out, config.data.limit_validation)
    batch = global_batch(config, workers)
    per_epoch = config.train.steps_per_epoch or math.ceil(images / batch)
    total = config.train.epochs * per_epoch if config.train.steps is None else config.train.steps
    more = held_out if held_out > validation else None
    return Counts(workers, images, validation, batch, per_epoch, math.ceil(total / per_epoch), total, scaled_for, more)


def global_batch(config: Config, workers: int) -> int:
    """Images per step over all workers that share it; in an asynchronous run, each step is one worker's."""
    train, workers = config.train, sharing(config, workers)
    listed = sum(train.batch_sizes) if isinstance(train.batch_sizes, tuple) else 0
    return train.global_batch or listed or train.batch_size * workers


def sharing(config: Config, workers: int) -> int:
    """How many of the workers share a step."""
    return 1 if config.strategy.asynchronous else workers


def _validation_count(files: int, fraction: float) -> int:
    """Number of images held out of `files`: at least one, never all."""
    return max(1, min(files - 1, round(files * fraction)))


def _limited(images: int, limit: int | float | None) -> int:
    """Number of images that `data.limit_train` or `data.limit_validation` leaves of `images`."""
    if limit is None:
        return images
    wanted = limit if isinstance(limit, int) else round(images * limit)
    return max(1, min(images, int(wanted)))


def learning_rate(config: Config, sizes: Counts, epoch: float) -> float:
    """The rate at a time in epochs from 0; scaling with the workers and warm-up follow Goyal et al. 2017 (arXiv:1706.02677).

    The cosine's shape is that of Loshchilov, Hutter 2017 (arXiv:1608.03983), without restarts.
    """
    base, workers = config.optimizer.learning_rate, sizes.scaled_for or sizes.workers
    factor = {"none": 1.0, "linear": float(workers), "sqrt": math.sqrt(workers)}[config.schedule.scaling]
    warmup = config.schedule.warmup_epochs
    if epoch < warmup:
        factor = 1.0 + (factor - 1.0) * epoch / warmup
    stage = 1.0
    for start, multiplier in sorted(config.schedule.decay):
        if epoch >= start:
            stage = multiplier
    last = sizes.total_steps / sizes.steps_per_epoch
    done = min(1.0, max(0.0, (epoch - warmup) / (last - warmup))) if last > warmup else 0.0
    left = {"constant": 1.0, "linear": 1.0 - done, "cosine": (1.0 + math.cos(math.pi * done)) / 2}[config.schedule.shape]
    final = config.schedule.final
    return base * factor * stage * (left if config.schedule.shape == "constant" else final + (1.0 - final) * left)
