"""Signals and marks between a worker and what started it."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
"""In a worker's folder: somebody asked for its end. A signal without this mark comes from elsewhere, such as a host that goes down."""
LET_IN = signal.SIGUSR2
"""Asks a worker to end with its epoch, together with all others, so that a host that was lost can join."""
STACKS = signal.SIGUSR1
"""Makes a worker write the Python stacks of all its threads to its log."""


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, even if that is killed itself."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
