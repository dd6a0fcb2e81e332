"""Reservations of run names by commands: of two commands that start one run in the same second, only one succeeds."""

import contextlib
import fcntl
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from control.common import project
from trainer.common.errors import LockstepError
from trainer.common.files import read_json, write_json

STARTING = project.PRIVATE / "starting"
"""Folder with one file per name, valid while the command that wrote it lives."""


def reserve(run: str) -> None:
    """Let only this command start a run, until `release` or the command's end.

    Raises:
        LockstepError: another command is starting it.
    """
    with _locked():
        if holder := _other(run):
            raise LockstepError(
                f"run={run}: another command (process {holder['pid']}) is starting it; nothing was changed.\n"
                f"Fix: once its workers run, watch them: ansible-playbook train.yml -e run={run}; or choose another run name"
            )
        _write(run)


def reserve_new(run: str, runs: Path) -> str:
    """Reserve an unused name: the wanted one, or the first free one of `run-2`, `run-3` and so on.

    Args:
        run: the name wanted.
        runs: folder of run directories.
    """
    with _locked():
        names = itertools.chain([run], (f"{run}-{number}" for number in itertools.count(2)))
        free = next(name for name in names if not (runs / name).exists() and _other(name) is None)
        _write(free)
    return free


def refuse(run: str) -> None:
    """Refuse a run that another command is starting.

    Raises:
        LockstepError: the process that starts it.
    """
    if holder := _other(run):
        raise LockstepError(
            f"run={run}: another command (process {holder['pid']}) is starting it; nothing was changed. Fix: end that command with Ctrl-C, "
            "or wait until its workers run"
        )


def release(run: str) -> None:
    """Let other commands start, or watch, a run that this command reserved."""
    with _locked():
        if _other(run) is None:
            _file(run).unlink(missing_ok=True)


def command() -> dict[str, Any]:
    """Identity of the command that this process works for."""
    return identity(os.getppid())


def identity(pid: int) -> dict[str, Any]:
    """Unique identity of a process: pid and start time, since pids are reused."""
    try:
        began = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        began = boot = ""
    return {"pid": pid, "began": began, "boot": boot}


def lives(one: dict[str, Any]) -> bool:
    """Return whether the process with an identity is alive."""
    return one == identity(one["pid"])


def _other(run: str) -> dict[str, Any] | None:
    """Another living command that reserved a name; None if there is none."""
    if not _file(run).is_file():
        return None
    holder: dict[str, Any] = read_json(_file(run))["command"]
    return holder if lives(holder) and holder != command() else None


def _write(run: str) -> None:
    for file in STARTING.glob("[!.]*.json"):
        if not lives(read_json(file)["command"]):
            file.unlink()
    write_json(_file(run), {"command": command(), "at": time.time()})


def _file(run: str) -> Path:
    return STARTING / f"{run}.json"


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    STARTING.mkdir(parents=True, exist_ok=True)
    with (STARTING / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
