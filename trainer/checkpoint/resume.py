"""Choice of the state that a run resumes from: the newest intact one, whichever worker has it; all workers start from the same."""

import itertools
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.checkpoint.states import Memories, Progress, States
from trainer.network.array_group import ArrayGroup
from trainer.network.member import Member

RECENT = 64
"""How many of its newest states a worker tells the others about."""


@dataclass(frozen=True)
class StoredState:
    """An intact state on a worker's disk."""

    step: int
    attempt: str
    """As in `Progress`, which this and `hosts` are from."""
    hosts: list[str] | None
    rank: int
    """Rank of the worker that has the state."""


class Resuming:
    """States that the workers have when they start; all create this at once, and then call `restore`."""

    def __init__(self, cluster: ArrayGroup, states: States, warn: Callable[[str], None] = print):
        """Exchange which states there are; warnings go to the user."""
        self._cluster, self._states, self._warn = cluster, states, warn
        self._own = dict(itertools.islice(self._equal(states), RECENT))
        own = [(step, progress.attempt, progress.hosts) for step, progress in self._own.items()]
        lists = [json.loads(text) for text in cluster.texts(json.dumps(own))]
        self._held = [StoredState(step, attempt, hosts, rank) for rank, every in enumerate(lists) for step, attempt, hosts in every]
        self._held.sort(key=lambda one: (-one.step, one.rank))
        self._newest = self._held[0] if self._held else None
        self.newest = self._progress(self._newest)
        """Progress of the newest state; a fresh one if there is none."""

    def _equal(self, states: States) -> Iterator[tuple[int, Progress]]:
        """The readable states whose workers had the same weights."""
        for step, progress in states.readable():
            if len(set(progress.digests)) <= 1:
                yield step, progress
            else:
                self._warn(f"{states.files.path(step)}: left out, as the workers' weights differed when it was saved")

    @property
    def begun(self) -> bool:
        """True if there is a state to resume from."""
        return self._newest is not None

    def restore(self, variables: Sequence[Any], memories: Memories) -> Progress:
        """Give every worker the newest intact state, or the chief's initial values if there is none.

        The values are sent bit for bit by a worker that has them, so workers can't start from different weights. A reduction's memory is
        each worker's own. If these same workers saved the newest state and one has lost its part, an older state for which all have their
        parts is used. If there is none, or if other workers trained in between, the memory is reset, and `Progress.inexact` says so.
        """
        chosen, member = self._common(memories) if memories.memory else self._newest, self._cluster.member
        arrays: Sequence[np.ndarray] = [variable.numpy() for variable in variables]
        if chosen is not None and chosen.rank == member.rank:
            arrays, _ = self._states.load(chosen.step, variables)
        if member.workers > 1:
            arrays = self._cluster.from_worker(chosen.rank if chosen else 0, arrays)
        for variable, array in zip(variables, arrays, strict=True):
            variable.assign(array)
        self._tell(chosen)
        progress = self.newest if chosen == self._newest else self._progress(chosen)
        progress.restarts += chosen is not None
        self._recall(memories, progress)
        progress.attempt, progress.hosts = self._cluster.text_from_chief(secrets.token_hex(8)), member.hosts
        return progress

    def _progress(self, held: StoredState | None) -> Progress:
        """That of a state, on every worker: its holder sends it as JSON, which preserves floats exactly."""
        if held is None:
            return Progress()
        own = self._own[held.step] if held.rank == self._cluster.member.rank else Progress()
        return Progress(**json.loads(self._cluster.text_from(held.rank, json.dumps(vars(own)))))

    def _common(self, memories: Memories) -> StoredState | None:
        """The newest state for which all workers have their memory, else the newest; only the newest if other workers saved it."""
        newest = self._newest
        if newest is None:
            return None
        again = newest.hosts == self._cluster.member.hosts
        usable = [one for one in self._held if again or (one.step, one.attempt) == (newest.step, newest.attempt)]
        parts = self._cluster.gather([memories.has(one.step, one.attempt) for one in usable])
        return next((one for one, everywhere in zip(usable, np.all(parts, axis=0).tolist(), strict=True) if everywhere), newest)

    def _tell(self, chosen: StoredState | None) -> None:
        """Warn where the state in use is not this worker's own newest one."""
        member, files = self._cluster.member, self._states.files
        damaged = [str(files.path(step)) for step in files.damaged if chosen is None or step >= chosen.step]
        here = f"rank {chosen.rank} ({member.hosts[chosen.rank]})" if chosen else ""
        used = f"all workers continue from the state of step {chosen.step:,} of {here}" if chosen else "the training starts anew"
        if damaged:
            self._warn(f"{', '.join(damaged)}: damaged; {used} instead")
        elif member.is_chief and chosen is not None and chosen.rank:
            own = max(files.steps(), default=None)
            self._warn(f"the chief {'has no training state' if own is None else f'has only that of step {own:,}'}: {used}")

    def _recall(self, memories: Memories, progress: Progress) -> None:
        """Load the memory of the state; unless all workers can, clear it everywhere and note why the weights will differ."""
        if not memories.memory or not progress.step:
            return
        loaded = memories.load(progress.step, progress.attempt)
        without = np.flatnonzero(self._cluster.gather([int(loaded)])[:, 0] == 0).tolist()
        if without:
            memories.assign(memories.first)
            why = _why_inexact(self._cluster.member, progress, without)
            progress.inexact = [*progress.inexact, why]
            if self._cluster.member.is_chief:
                memories.warn(f"{why}: the weights will differ a little from those of a run without interruption")


def _why_inexact(member: Member, progress: Progress, without: Sequence[int]) -> str:
    before = progress.hosts
    if before is None or before == member.hosts:
        why = f"missing or damaged on rank {', '.join(map(str, without))}"
    else:
        why = "other workers saved it" if len(before) == member.workers else f"{len(before)} workers saved it, {member.workers} go on"
    return f"what the reduction had not sent at step {progress.step:,} started anew ({why})"
