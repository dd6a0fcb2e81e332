"""Saves the training state while training goes on: a step waits only for a copy of it in memory.

Every worker has a thread that writes its part, one save at a time: what its reduction remembers and, on the chief, the state. Rank 1, which
has the same weights, writes a copy (`checkpoint.copy`). A save counts when a state and all parts are there, which the workers tell each
other in `settle`: before the next save, at the end of an epoch, and at the end. Only then do older states go, so a run that is broken off
meanwhile resumes from the one before.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from trainer.checkpoint.states import Memories, Progress, States
from trainer.network.array_group import ArrayGroup
from trainer.rundir.full_disk import Saver

STATE, COPY, PART = "the training state", "the copy of the training state", "what the reduction has not sent"
HOLDERS = {"none": 1, "peer": 2, "all": math.inf}
"""How many workers, from rank 0, write the state, by `checkpoint.copy`."""
Missing = dict[str, str]
"""Parts that a save lacks, each with the reason."""


class StateSaving:
    """One worker's share in saving the state; all workers call `save` and `settle` after the same steps."""

    def __init__(self, cluster: ArrayGroup, states: States, memories: Memories, saver: Saver, saved: int, copy: str):
        """Continue a run whose state of the step `saved` is complete, 0 if none is; `copy` is `checkpoint.copy`."""
        self._cluster, self._states, self._memories, self._saver = cluster, states, memories, saver
        self._holds, self._name = cluster.member.rank < HOLDERS[copy], STATE if cluster.member.is_chief else COPY
        """True if this worker writes a state; name of that state in messages."""
        self.saved, self.complete = saved, True
        """Step of the newest saved state of this run, and whether the last save succeeded on the chief, too."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="state")
        self._under_way: tuple[int, Future[Missing]] | None = None
        for files in (states.files, memories.files):
            files.clear()

    @property
    def busy(self) -> bool:
        """True while this worker is writing."""
        return self._under_way is not None and not self._under_way[1].done()

    def save(self, read: Callable[[], list[np.ndarray]], progress: Progress) -> None:
        """Begin to write a copy of the state, whose arrays `read` returns, as soon as the save before is settled."""
        self.settle()
        arrays = read() if self._holds else []
        memory = [array.numpy() for array in self._memories.memory]
        # Training replaces what is in its progress, and changes none of it.
        self._under_way = progress.step, self._thread.submit(self._write, arrays, memory, replace(progress))

    def check(self) -> None:
        """Raise what went wrong in the thread, and warn about a full disk, without waiting."""
        if self._under_way is not None and not self.busy:
            for what, reason in self._under_way[1].result().items():
                self._saver.lacks(what, reason)

    def settle(self) -> None:
        """Wait for the save under way and agree whether it is complete; its error, if any, is raised here."""
        if self._under_way is None:
            return
        (step, writing), self._under_way = self._under_way, None
        missing = writing.result()
        table = self._cluster.gather([PART not in missing, self._holds and not missing])
        parts, states = bool(table[:, 0].all()), table[:, 1]
        saved, self.complete = parts and bool(states.any()), parts and bool(states[0])
        self._note(missing, step, parts)
        for files in [*([self._states.files] if self._holds else []), *([self._memories.files] if self._memories.memory else [])]:
            if saved:
                files.tidy(step)
            elif step != self.saved:
                # Nothing resumes from a part of a state. One of this step that was saved before is still there.
                files.drop(step)
        self.saved = step if saved else self.saved

    def free(self) -> bool:
        """Delete states and parts that a run can do without, for space; the newest saved one stays. Whether there were any."""
        freed = self._memories.files.free(self.saved)
        return self._states.files.free(self.saved) or freed

    def _write(self, arrays: Sequence[np.ndarray], memory: Sequence[np.ndarray], progress: Progress) -> Missing:
        """In the thread: this worker's part and, if that succeeds, the state."""
        states, memories, missing = self._states, self._memories, Missing()
        if memory:
            path = memories.files.path(progress.step)
            reason = self._saver.attempt(path, _size(memory), lambda: memories.write(progress.step, progress.attempt, memory))
            missing |= {PART: reason} if reason else {}
        if self._holds and not missing:
            reason = self._saver.attempt(states.files.path(progress.step), _size(arrays), lambda: states.write(arrays, progress))
            missing |= {self._name: reason} if reason else {}
        return missing

    def _note(self, missing: Missing, step: int, parts: bool) -> None:
        if self._memories.memory:
            self._saver.note(PART, missing.get(PART, ""))
        if self._holds:
            lacking = "" if parts else f"{self._states.files.path(step)}: a worker has no room for its part of it"
            self._saver.note(self._name, missing.get(self._name, lacking))


def _size(arrays: Sequence[np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays)
