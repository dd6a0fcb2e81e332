"""Assignment of images to steps and workers: pure functions of (seed, epoch, step, worker).

No collectives and no state: any worker can compute any other's share, and a resumed run computes
what an uninterrupted one would have.
"""

from collections.abc import Sequence

import numpy as np

BUCKETS, PARTNERS = 2**48, 2**49
"""Random numbers of `_bucketed`, and of `EpochPlan.partners`, are apart from those of `epoch_order`."""


def held_out_order(count: int, held_out: int, seed: int) -> np.ndarray:
    """Order `[count]` of all indices, random from `seed`, in which the last `held_out` examples come first."""
    rng = np.random.Generator(np.random.Philox(key=[seed, 0]))
    rest = count - held_out
    return np.concatenate([rest + rng.permutation(held_out), rng.permutation(rest)])


def epoch_order(images: int, seed: int, epoch: int, lap: int = 0) -> np.ndarray:
    """Permutation `[images]` for an epoch; `lap` counts repeated passes inside one epoch."""
    rng = np.random.Generator(np.random.Philox(key=[seed, (epoch << 16) + lap + 1]))
    return rng.permutation(images)


def _bucketed(order: np.ndarray, lengths: np.ndarray, batch: int, pool: int, rng: np.random.Generator) -> np.ndarray:
    """The order `[examples]`, changed so that the examples of a batch have similar lengths and little of it is padding.

    Of each `pool` batches in a row, the examples are sorted by length, cut into batches, and both the batches and the examples of each
    shuffled again: no worker gets the longest of every batch. A permutation of `order`; with a pool of 1, `order` itself.

    Args:
        order: of an epoch.
        lengths: `[examples]`, by example.
        batch: examples per step over all workers.
        pool: batches that are sorted together.
        rng: of the shuffles.
    """
    if pool <= 1:
        return order
    parts = []
    for start in range(0, len(order), pool * batch):
        window = order[start : start + pool * batch]
        window = window[np.argsort(lengths[window], kind="stable")]
        # The short batch stays at the end of the epoch, where steps expect it.
        whole = len(window) // batch
        odd = rng.choice(len(window), len(window) - whole * batch, replace=False, shuffle=False)
        batches = np.delete(window, odd).reshape(whole, batch)[rng.permutation(whole)]
        parts += [rng.permuted(batches, axis=1).ravel(), window[odd]]
    return np.concatenate(parts) if parts else order


def part_bounds(batch: int, shares: Sequence[int], rank: int) -> tuple[int, int]:
    """Start and stop of a worker's part of a batch, proportional to its share to within one image."""
    before, total = sum(shares[:rank]), sum(shares)
    return batch * before // total, batch * (before + shares[rank]) // total


class EpochPlan:
    """The global batches of one epoch, and each worker's part of them."""

    def __init__(self, images: int, global_batch: int, steps: int, seed: int, epoch: int, lengths: np.ndarray | None = None, pool: int = 1):
        """Plan an epoch; with `lengths` `[images]` by position, `pool` batches in a row are `_bucketed`."""
        self._lengths, self._pool = lengths, pool
        self.images, self.global_batch, self.steps = images, global_batch, steps
        self.steps_before = (epoch - 1) * steps
        self._seed, self._epoch = seed, epoch
        self._orders = {0: self._order(0)}
        self._wraps = steps * global_batch >= images + global_batch

    def union(self, step: int) -> np.ndarray:
        """Positions of the images in the global batch of `step` (from 0)."""
        first, last = step * self.global_batch, (step + 1) * self.global_batch
        if not self._wraps:
            return self._orders[0][first : min(last, self.images)]
        return np.concatenate([self._lap(first, last, lap) for lap in range(first // self.images, -(-last // self.images))])

    def size(self, step: int) -> int:
        """Number of images in the global batch of `step`."""
        first, last = step * self.global_batch, (step + 1) * self.global_batch
        return self.global_batch if self._wraps else min(last, self.images) - first

    def partners(self, step: int) -> np.ndarray:
        """For each image of the global batch of `step`, the place in that batch of the one that it is mixed with; a permutation."""
        rng = np.random.Generator(np.random.Philox(key=[self._seed, PARTNERS + self.steps_before + step]))
        return rng.permutation(self.size(step))

    def seeds(self, step: int, places: np.ndarray) -> np.ndarray:
        """A pair of numbers `[len(places), 2]` int64 for each of these places of the global batch of `step`, to draw with.

        They follow from the run's seed, the epoch, the image, and how often it came before in this epoch.
        """
        lap = (step * self.global_batch + places) // self.images
        own = np.random.SeedSequence([self._seed, self._epoch]).generate_state(1)[0] >> 1
        return np.stack([np.full(len(places), own, np.int64), lap * self.images + self.union(step)[places]], axis=1)

    def _order(self, lap: int) -> np.ndarray:
        order = epoch_order(self.images, self._seed, self._epoch, lap)
        if self._lengths is None:
            return order
        rng = np.random.Generator(np.random.Philox(key=[self._seed, BUCKETS + (self._epoch << 16) + lap]))
        return _bucketed(order, self._lengths, self.global_batch, self._pool, rng)

    def _lap(self, first: int, last: int, lap: int) -> np.ndarray:
        if lap not in self._orders:
            self._orders[lap] = self._order(lap)
        start = lap * self.images
        return self._orders[lap][max(first - start, 0) : min(last - start, self.images)]
