"""A worker's failure: the rule which of several was the first, and a sentence, for supervisors and for the command that watches a run."""

from dataclasses import dataclass
from enum import IntEnum

from trainer.common.errors import RESTART, signal_of
from trainer.common.safe_text import printable
from trainer.rundir.phases import Phase

LOST = -1
"""In place of an exit code: the worker was lost together with its supervisor, or with its host."""
TEXT = 300
"""Most characters of a message."""


class Kind(IntEnum):
    """Where a failure comes from: a larger kind follows from a smaller one, whenever it was noticed."""

    OWN = 0
    LOST_PEER = 1
    """The worker ended because it had lost another one."""
    FOLLOWS = 2
    """The worker was ended because another one had failed, or the other workers had already gone on without this one."""


@dataclass(frozen=True)
class Failure:
    """How a worker failed."""

    host: str
    rank: int | str
    kind: Kind
    step: int
    phase: str
    at: float
    """When, in seconds from any moment that is the same for all; one that fell silent counts from its last sign of life."""
    code: int | None = None
    """Exit code, 128 and the signal's number if a signal ended it, or `LOST`."""
    message: str = ""
    """Why somebody ended it."""

    @property
    def order(self) -> tuple[Kind, float]:
        """The smallest is the first failure."""
        return self.kind, self.at

    @property
    def words(self) -> str:
        """How the worker ended; empty if its end was not seen."""
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
    """The kind of a failure; `follows`: somebody ended the worker, or left it behind, because of another one."""
    if follows:
        return Kind.FOLLOWS
    return Kind.LOST_PEER if code == RESTART and not message else Kind.OWN


def silent(seconds: float) -> str:
    """No sign of life for so long, in words."""
    return f"no heartbeat for {seconds:.0f} s"
