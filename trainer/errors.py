"""Errors a person can act on, and the exit codes that tell a launcher what to do."""

DONE = 0
FAILED = 1
DIVERGED = 3
PREEMPTED = 42
RESTART = 75


REFUSAL = "error: "
"""How the message of a process of ours begins on its standard error."""


class LockstepError(Exception):
    """A message for a person: the value, the rule and the mend. Printed without a traceback."""


def refusal(said: str) -> str:
    """The message with which a process of ours ended, of any number of lines; empty when it ended without one.

    Args:
        said: its standard error; libraries, and a person's own code, may have written before.
    """
    _, found, message = f"\n{said}".rpartition(f"\n{REFUSAL}")
    return message.strip() if found else ""


class ConfigError(LockstepError):
    """A configuration that can't be used."""


class DatasetError(LockstepError):
    """A dataset that can't be used."""


class ClusterError(LockstepError):
    """A cluster that can't train."""


class PeerLost(LockstepError):
    """Another worker is gone; all have to start again."""

    def __init__(self, message: str, rank: int):
        super().__init__(message)
        self.rank = rank


class Diverged(LockstepError):
    """The loss is no longer a number."""
