"""Errors that a user can act on, and the exit codes that tell a launcher what to do."""

import signal

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
CRASHES = ("SIGSEGV", "SIGILL", "SIGFPE", "SIGBUS", "SIGABRT", "SIGTRAP", "SIGSYS")
"""Signals that a process causes itself; others come from outside."""


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


def signal_of(code: int | None) -> str:
    """Name of the signal that ended a process, from a shell's exit code (128 + number) or Python's (negative); empty for none."""
    try:
        return signal.Signals(-code if code < 0 else code - 128).name if code else ""
    except ValueError:
        return ""


def code_of(returned: int) -> int:
    """Exit code as a shell gives it, from `subprocess`' return code, which is negative for a signal."""
    return returned if returned >= 0 else 128 - returned


def refusal(output: str) -> str:
    """The message at the end of one of our processes' standard error, any number of lines; empty if it ended without one."""
    _, prefix, message = f"\n{output}".rpartition(f"\n{REFUSAL}")
    return message.strip() if prefix else ""
