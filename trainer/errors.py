"""Errors a person can act on, and the exit codes that tell a launcher what to do."""

DONE = 0
FAILED = 1
DIVERGED = 3
PREEMPTED = 42
RESTART = 75


class LockstepError(Exception):
    """A message for a person: the value, the rule and the mend. Printed without a traceback."""


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
