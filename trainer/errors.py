"""Errors that a user can act on, and the exit codes that tell a launcher what to do."""

DONE = 0
FAILED = 1
DIVERGED = 3
PREEMPTED = 42
RESTART = 75


REFUSAL = "error: "
"""Prefix of an error message that one of our processes writes to standard error."""


class LockstepError(Exception):
    """A message for the user: the value, the rule and the fix. Printed without a traceback."""


def refusal(said: str) -> str:
    """The message with which one of our processes ended, any number of lines; empty if it ended without one.

    Args:
        said: its standard error; libraries and the user's own code may have written to it before.
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
    """Another worker is lost; all must restart."""

    def __init__(self, message: str, rank: int):
        super().__init__(message)
        self.rank = rank


class Diverged(LockstepError):
    """The loss or a weight is NaN or infinite."""
