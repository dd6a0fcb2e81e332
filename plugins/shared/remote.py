"""Look at a worker and fetch a run's files over a host's own connection (local or SSH)."""

import json
import os
import re
import shlex
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

from plugins.module_utils.lockstep_tmux import SOCKET

TMUX = f"tmux -L {SOCKET}"
MARK = "=====lockstep====="
STATE = re.compile(r"(.*/)?(state|memory)/step-\d+\.npz")


class Gone(Exception):
    """The host can't be reached."""


@dataclass
class Seen:
    """One look at a worker."""

    records: list[dict[str, Any]]
    """New records of metrics.jsonl."""
    exit: dict[str, Any] | None
    """exit.json, once there."""
    alive: bool
    """Whether the tmux session is there."""
    heard: float | None
    """Age in seconds of the last record, by the worker's own clock."""
    ahead: float
    """Seconds that the host's clock is ahead of this machine's, give or take half the time of the look."""


@dataclass
class Worker:
    """A worker's files on its host."""

    action: ActionBase
    run: str
    folder: str
    session: str
    _offset: int = field(default=0)
    _last: float | None = field(default=None)

    def look(self) -> Seen:
        """Read what is new.

        Raises:
            Gone: the host can't be reached.
        """
        quoted = shlex.quote(self.folder)
        script = (
            f"cd {quoted} 2>/dev/null; date +%s.%N; echo {MARK}; tail -c +{self._offset + 1} metrics.jsonl 2>/dev/null; echo {MARK}; "
            f"if {TMUX} has-session -t {shlex.quote('=' + self.session)} 2>/dev/null; then echo alive; fi; echo {MARK}; "
            "cat exit.json 2>/dev/null; true"
        )
        asked = time.time()
        clock, news, alive, ended = (part.strip("\n") for part in self._shell(script).split(MARK))
        ahead = float(clock) - (asked + time.time()) / 2
        records = self._records(news)
        heard = float(clock) - self._last if self._last is not None else None
        return Seen(records, json.loads(ended) if ended.strip() else None, alive.strip() == "alive", heard, ahead)

    def _records(self, news: str) -> list[dict[str, Any]]:
        """Whole lines only; a torn last line is read again next time."""
        whole = news if news.endswith("}") or not news else news.rpartition("\n")[0]
        self._offset += len(whole.encode()) + (1 if whole else 0)
        records = [json.loads(line) for line in whole.splitlines() if line.strip()]
        if records:
            self._last = records[-1]["t"]
        return records

    def last_lines(self, count: int = 20) -> list[str]:
        """The end of worker.log."""
        return self._shell(f"tail -n {count} {shlex.quote(self.folder)}/worker.log 2>/dev/null; true").splitlines()

    def collect(self, into: Path, only: str | None = None, keep: bool = False, without: tuple[str, ...] = ()) -> list[str]:
        """Fetch files of the run directory that are new or changed; each whole or not at all.

        Args:
            into: the run directory on the control node.
            only: a folder inside the run directory, to fetch nothing else.
            keep: leave the summary.json that is here alone.
            without: folders to leave there.
        """
        fetched, there = [], set()
        where = f"{self.run}/{only}" if only else self.run
        listing = self._shell(f"cd {shlex.quote(where)} 2>/dev/null && find . -type f ! -name '.part-*' -printf '%s %T@ %P\\n'; true")
        for line in listing.splitlines():
            size, changed, name = line.split(" ", 2)
            there.add(name)
            path = into / only / name if only else into / name
            ours = name in ("config.yml", "cluster.json") or (keep and name == "summary.json")
            if set(without) & set(name.split("/")) or (ours and not only):
                continue
            if not _same(path, int(size), float(changed)):
                self._fetch(f"{where}/{name}", path, float(changed))
                fetched.append(name)
        _forget_old_states(into / (only or "."), there)
        return fetched

    def _fetch(self, remote: str, local: Path, changed: float) -> None:
        local.parent.mkdir(parents=True, exist_ok=True)
        part = local.with_name(f".part-{os.getpid()}-{local.name}")
        try:
            self.action._connection.fetch_file(remote, str(part))
            if ".tfevents." in local.name and local.is_file():
                _grow(local, part)
            else:
                part.replace(local)
            os.utime(local, (changed, changed))
        except AnsibleConnectionFailure as error:
            raise Gone(str(error)) from None
        except AnsibleError as error:
            if self._shell(f"test -e {shlex.quote(remote)} && echo there").strip():
                raise Gone(f"{remote} can't be fetched: {error}") from None
        finally:
            part.unlink(missing_ok=True)

    def _shell(self, script: str) -> str:
        try:
            done = self.action._low_level_execute_command(script, sudoable=False, executable="/bin/bash")
        except AnsibleConnectionFailure as error:
            raise Gone(str(error)) from None
        if done["rc"] == 255 and self.action._connection.transport != "local":
            raise Gone(done["stderr"].strip())
        return str(done["stdout"])


def _grow(local: Path, longer: Path) -> None:
    """Add what is new: TensorBoard keeps an event file open, and would never see another file in its place."""
    with local.open("ab") as there, longer.open("rb") as new:
        new.seek(there.tell())
        shutil.copyfileobj(new, there)


def _forget_old_states(into: Path, there: set[str]) -> None:
    """Drop training states that a worker has replaced by newer ones."""
    folders = {name.rpartition("/")[0] for name in there if STATE.fullmatch(name)}
    for folder in folders:
        newest = max(name for name in there if name.startswith(f"{folder}/step-"))
        for path in (into / folder).glob("step-*.npz"):
            name = f"{folder}/{path.name}"
            if name not in there and name < newest:
                path.unlink()


def _same(path: Path, size: int, changed: float) -> bool:
    return path.is_file() and path.stat().st_size == size and abs(path.stat().st_mtime - changed) < 0.01


def clear_marks(folder: Path) -> None:
    """Forget the failures of an earlier launch."""
    for mark in folder.glob("failed-*"):
        mark.unlink()


def mark_failed(folder: Path, host: str) -> None:
    """Tell the watchers of the other hosts that this one failed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"failed-{host}").touch()


def other_failed(folder: Path, host: str) -> float | None:
    """Seconds since another host failed, or None."""
    ages = [time.time() - mark.stat().st_mtime for mark in folder.glob("failed-*") if mark.name != f"failed-{host}"]
    return max(ages, default=None)
