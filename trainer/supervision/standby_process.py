"""Import what a worker needs, wait, then become `python -m trainer ARGUMENTS`: the import takes most of the time of a restart.

A supervisor starts this process beside its worker (`trainer.supervision.child`) and later writes the arguments to a pipe. Until then, the
process uses only spare processor time, is the first to be killed when memory is short, has no threads and devices of TensorFlow, and ends
with its supervisor. Afterwards, only its command line differs from that of a process that was started with these arguments.
"""

import argparse
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path

from trainer.common.errors import RESTART
from trainer.host.process import die_with_parent
from trainer.worker.backend import MODULES

LEAST_NICE = 19
OOM = Path("/proc/self/oom_score_adj")
FIRST_TO_GO = 500
"""Addition to the score by which the kernel chooses a process to kill."""


def main() -> None:
    """Import, wait, become the worker with the arguments from the pipe; end if the supervisor closes the pipe."""
    line = argparse.ArgumentParser(prog="python -m trainer.supervision.standby_process", description=__doc__)
    line.add_argument("--pipe", type=int, required=True, help="descriptor from which the order comes, as JSON")
    line.add_argument("--parent", type=int, required=True, help="process id of the supervisor")
    given = line.parse_args()
    die_with_parent(given.parent)
    # A requested end needs no message.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    score = _raise_score()
    # A worker does the same, for the same reason.
    gc.disable()
    # A nice value belongs to a thread, and only root may lower it again: it ends with this thread.
    thread = threading.Thread(target=_import)
    thread.start()
    with open(given.pipe, "rb") as pipe:
        order = pipe.read()
    if not order:
        os._exit(0)
    thread.join()
    if score is not None:
        OOM.write_text(score, encoding="ascii")
    signal.signal(signal.SIGINT, before)
    _become(**json.loads(order))


def _import() -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_NICE)
        for name in MODULES:
            importlib.import_module(name)
    except BaseException:
        # A newly started worker shows whether the cause is more than a lack of memory.
        traceback.print_exc()
        os._exit(RESTART)


def _raise_score() -> str | None:
    """Make this process the kernel's first choice when memory is short; return the score before, None if it can't be changed."""
    with contextlib.suppress(OSError, ValueError):
        before = OOM.read_text(encoding="ascii").strip()
        OOM.write_text(str(min(1000, int(before) + FIRST_TO_GO)), encoding="ascii")
        return before
    return None


def _become(arguments: list[str], environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
