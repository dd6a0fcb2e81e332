"""A worker's failure: the order of several failures, and a sentence, for supervisors and for commands that watch a run."""

from dataclasses import dataclass
from enum import IntEnum

from trainer.common.errors import RESTART, signal_of
from trainer.common.safe_text import printable
from trainer.rundir.phases import Phase

LOST = -1
"""Value in place of an exit code if the worker was lost together with its supervisor or its host."""
TEXT = 300
"""Most characters of a message."""


class Kind(IntEnum):
    """Origin of a failure: a larger kind follows from a smaller one, whatever the order in which they were noticed."""

    OWN = 0
    LOST_PEER = 1
    """The worker ended because it had lost another worker."""
    FOLLOWS = 2
    """The worker was ended because another worker had failed, or because the others had already gone on without it."""


@dataclass(frozen=True)
class Failure:
    """Description of a worker's failure."""

    host: str
    rank: int | str
    kind: Kind
    step: int
    phase: str
    at: float
    """Time in seconds from a moment common to all workers; for a silent worker, the time of its last sign of life."""
    code: int | None = None
    """Exit code, 128 plus the signal's number if a signal ended the worker, or `LOST`."""
    message: str = ""
    """Reason given by the process that ended the worker."""

    @property
    def order(self) -> tuple[Kind, float]:
        """Sort key: the failure with the smallest key is the first one."""
        return self.kind, self.at

    @property
    def words(self) -> str:
        """Text on the worker's end; empty if its end was not seen."""
        if self.message:
            return f"{printable(self.message, TEXT)}, {self._where}"
        if self.code == LOST:
            return "was lost with its supervisor, or its host restarted"
        if self.code is None:
            return ""
        name = signal_of(self.code)
        end = "lost another worker" if self.code == RESTART else f"was killed by {name}" if name else f"ended with exit code {self.code}"
        return f"{end} {self._where}".rstrip()

    @property
    def _where(self) -> str:
        if self.phase in (Phase.TRAINING, Phase.ENDED):
            return f"at step {self.step:,}"
        return f"while {printable(self.phase, TEXT)}" if self.phase else ""


def kind_of(code: int | None, message: str = "", follows: bool = False) -> Kind:
    """The kind of a failure; `follows`: the worker was ended, or left behind, because of another worker."""
    if follows:
        return Kind.FOLLOWS
    return Kind.LOST_PEER if code == RESTART and not message else Kind.OWN


def silent(seconds: float) -> str:
    """Text on a worker's silence, given in seconds."""
    return f"no heartbeat for {seconds:.0f} s"
