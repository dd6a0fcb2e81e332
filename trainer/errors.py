"""Errors that a user can act on, and the exit codes that tell a launcher what to do."""

DONE = 0
FAILED = 1
DIVERGED = 3
"""The loss or a weight became NaN or infinite."""
PREEMPTED = 42
"""Asked to end early; the state is saved."""
RESTART = 75
"""A peer was lost: all must restart."""
REFUSAL = "error: "
"""Prefix of an error message that one of our processes writes to standard error."""


class LockstepError(Exception):
    """A message for the user: the value, the rule and the fix. Printed without a traceback."""


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
