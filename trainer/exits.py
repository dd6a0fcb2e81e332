"""How a process ended, from its exit code."""

import signal

CRASHES = ("SIGSEGV", "SIGILL", "SIGFPE", "SIGBUS", "SIGABRT", "SIGTRAP", "SIGSYS")
"""Signals that a process causes itself; others come from outside."""


def signal_of(code: int | None) -> str:
    """Name of the signal that ended a process, from a shell's exit code (128 + number) or Python's (negative); empty for none."""
    try:
        return signal.Signals(-code if code < 0 else code - 128).name if code else ""
    except ValueError:
        return ""


def code_of(returned: int) -> int:
    """Exit code as a shell gives it, from `subprocess`' return code, which is negative for a signal."""
    return returned if returned >= 0 else 128 - returned
