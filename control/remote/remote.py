"""Look at a worker and fetch a run's files over the host's connection (local or SSH)."""

import contextlib
import itertools
import os
import re
import resource
import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

from control.progress import Line
from control.remote.tmux import SOCKET
from control.runs import admission, logs
from trainer import files, records, sealed
from trainer.errors import LockstepError
from trainer.records import read_history
from trainer.rundir import prune, snapshots_policy
from trainer.terminal import printable

TMUX = f"tmux -L {SOCKET}"
MARK = "=====lockstep====="
STATE = re.compile(r"(.*/)?(state|memory)/step-\d+\.npz")
LOOK = 4 * 2**20
"""Bytes of metrics.jsonl per look; the next look continues there."""
FOLLOW_S = 0.5
EXIT = 64 * 1024
TAIL = 256 * 1024
"""Bytes at the end of worker.log that are searched for its last lines."""
SNAPSHOT = re.compile(r"(.*/)?checkpoints/epoch-\d+\.keras")
ATTEMPTS = 2
"""How often an invalid file is fetched: a file broken in transfer is intact the second time."""


class HostUnreachable(Exception):
    """The host can't be reached."""


@dataclass
class Seen:
    """One look at a worker."""

    records: list[dict[str, Any]]
    """New records of metrics.jsonl."""
    exit: dict[str, Any] | None
    """exit.json, once there."""
    alive: bool
    """Whether the tmux session exists."""
    heard: float | None
    """Age in seconds of the last record, by the worker's own clock; None while older records are still unread."""
    ahead: float
    """Seconds by which the host's clock is ahead of this machine's, plus or minus half the duration of the look."""
    unclear: str = ""
    """Why an existing exit.json is invalid."""
    more: bool = False
    """Whether more records are waiting than fit into this look."""


@dataclass
class Worker:
    """A worker's files on its host."""

    action: ActionBase
    run: str
    folder: str
    session: str
    say: Callable[[str], None] | None = None
    """Shows urgent messages; by default on their own line."""
    _offset: int = field(default=0)
    _last: float | None = field(default=None)
    _warned: set[str] = field(default_factory=set)
    _log_offset: int = field(default=-1)
    _unfit: dict[tuple[str, float], int] = field(default_factory=dict)
    """How often a file with that modification time was fetched and found invalid."""

    @property
    def host(self) -> str | None:
        """Name under which it writes; None for a folder that several workers write to."""
        folder = PurePosixPath(self.folder)
        return folder.name if folder.parent.name == "workers" else None

    def poll(self, latest: bool = False) -> Seen:
        """Read new records.

        Args:
            latest: if one look can't take all, take the end and not the beginning.

        Raises:
            HostUnreachable: the host can't be reached, or gives no valid answer.
        """
        where = f"-c {LOOK}" if latest else f"-c +{self._offset + 1}"
        ended = self._reading("exit.json", f"head -c {EXIT}")
        asked = time.time()
        news = self._reading("metrics.jsonl", f"tail {where}", LOOK)
        clock, touched, news, alive, ended = self._parts(
            "date +%s.%N", self._reading("metrics.jsonl", "stat -c %Y"), news, self._session(), ended
        )
        try:
            now = float(clock)
        except ValueError:
            raise HostUnreachable(f"its clock reads {printable(clock, 80)}") from None
        ahead = now - (asked + time.time()) / 2
        new, more = self._records(news, latest)
        heard = now - max(self._last, _seconds(touched)) if self._last is not None and not more else None
        unclear, end = "", None
        try:
            end = records.end(ended) if ended.strip() else None
        except LockstepError as error:
            unclear = str(error)
        return Seen(new, end, alive.strip() == "alive", heard, ahead, unclear, more)

    def follow(self, show: Callable[[dict[str, Any]], None], check: Callable[[], None] = lambda: None) -> Seen:
        """Poll until the worker ends, and return the last look.

        Args:
            show: called with every record.
            check: called after every look while the worker is alive; raises to leave it.

        Raises:
            HostUnreachable: as `poll`.
        """
        while True:
            seen = self.poll()
            for record in seen.records:
                show(record)
            if seen.exit is not None or not seen.alive:
                return seen
            check()
            time.sleep(FOLLOW_S)

    def _session(self) -> str:
        """A command that prints `alive` if the worker's session exists."""
        return f"{TMUX} has-session -t {shlex.quote('=' + self.session)} && echo alive"

    def _reading(self, name: str, command: str, most: int = EXIT) -> str:
        """A command that prints part of one of this worker's files; prints nothing for a link or for a file that would block."""
        path = shlex.quote(f"{self.folder}/{name}")
        return f"if [ -f {path} ] && [ ! -L {path} ]; then {command} {path} | head -c {most}; fi"

    def _parts(self, *commands: str) -> list[str]:
        """The output of several commands in one call, separated by a mark unique to this call."""
        mark = f"{MARK}{secrets.token_hex(8)}"
        script = f"{{ {f'; echo {mark}; '.join(commands)}; }} 2>/dev/null; true"
        parts = [part.removeprefix("\n") for part in self._shell(script).split(mark)]
        if len(parts) != len(commands):
            raise HostUnreachable(f"it answers with {len(parts)} parts instead of {len(commands)}: {printable(parts[0], 200)}")
        return parts

    def _records(self, news: str, latest: bool) -> tuple[list[dict[str, Any]], bool]:
        """Whole records, and whether there are more; a torn last line is read again next time."""
        size = len(_bytes(news))
        full = size >= LOOK
        complete = news[: news.rfind("\n") + 1]
        lines = complete.split("\n")[1 if latest and full else 0 :]
        # Skip a line longer than a look.
        self._offset += size if full and not complete else len(_bytes(complete))
        new, others = records.metrics(lines)
        if others or (full and not complete):
            self._warn("records", f"metrics.jsonl: {max(others, 1):,} lines are not valid records and are skipped")
        if new:
            self._last = new[-1]["t"]
        return new, full and not latest

    def last_lines(self, count: int = 20) -> list[str]:
        """The end of the current launch's part of worker.log."""
        written = self._shell(f"{self._reading('worker.log', f'tail -c {TAIL}', TAIL)}; true")
        return logs.shown(logs.of_last_launch(written.split("\n")))[-count:]

    def new_lines(self, count: int) -> tuple[list[str], bool]:
        """What was added to worker.log since the last call, and whether the worker was alive before.

        Args:
            count: maximum number of the current launch's lines that the first call returns.

        Raises:
            HostUnreachable: the host can't be reached, or gives no valid answer.
        """
        path, first = shlex.quote(f"{self.folder}/worker.log"), self._log_offset < 0
        # A file that another launch replaced is read from its beginning.
        begin = f"s > {TAIL} ? s - {TAIL} : 0" if first else f"s < {self._log_offset} ? 0 : {self._log_offset}"
        size = f"s=0; b=0; if [ -f {path} ] && [ ! -L {path} ]; then s=$(stat -c %s {path}); b=$(({begin})); fi; echo $b"
        alive, start, news = self._parts(self._session(), size, f"if [ $s -gt $b ]; then tail -c +$((b + 1)) {path} | head -c {TAIL}; fi")
        if not re.fullmatch(r"[0-9]{1,18}", start.strip()):
            raise HostUnreachable(f"it answers {printable(start, 80)} for the size of a file")
        # What does not fit into one call comes with the next; so does the end of a line in progress.
        full = len(_bytes(news)) >= TAIL
        living = full or alive.strip() == "alive"
        complete = news if not living or (full and "\n" not in news) else news[: news.rfind("\n") + 1]
        self._log_offset = int(start) + len(_bytes(complete))
        lines = complete.split("\n")
        return (logs.shown(logs.of_last_launch(lines))[-count:] if first else logs.shown(lines)), living

    def collect(self, into: Path, only: str | None = None, keep: bool = False, without: tuple[str, ...] = ()) -> list[str]:
        """Fetch new or changed files of the run directory, each whole or not at all.

        Args:
            into: the run directory on the control node.
            only: a folder inside the run directory; nothing else is fetched.
            keep: leave the local summary.json alone.
            without: folders not to fetch.
        """
        allowed = admission.kinds(self.host, admission.parameters(into))
        quoted = shlex.quote(self.run)
        taken, refused = admission.admit(self._shell(admission.listing(quoted, only, allowed)), allowed, only, admission.room(into))
        begin, fetched = len(f"{only}/") if only else 0, []
        for file in taken:
            if set(without) & set(file.name.split("/")) or (keep and file.name == "summary.json"):
                continue
            tried = self._unfit.get((file.name, file.changed), 0)
            try:
                path = admission.destination(into, file.name)
                if tried < ATTEMPTS and not _same(path, file.size, file.changed):
                    self._fetch(f"{self.run}/{file.name}", path, file)
                    fetched.append(file.name[begin:])
            except (LockstepError, OSError) as error:
                self._unfit[file.name, file.changed] = tried + 1
                if STATE.fullmatch(file.name):
                    self._warn("states", f"{file.name} {printable(error, 300)}")
                else:
                    refused.append(admission.Refusal(file.name, printable(error, 300)))
        self._warn("names", admission.summary(refused))
        _forget_old_states(into / (only or "."), {file.name[begin:] for file in taken})
        if not only and "checkpoints" not in without:
            _forget_old_snapshots(into)
        return fetched

    def _fetch(self, remote: str, local: Path, file: admission.File) -> None:
        handle, name = tempfile.mkstemp(dir=local.parent, prefix=".part-")
        os.close(handle)
        part = Path(name)
        try:
            if not (SNAPSHOT.fullmatch(file.name) and self._link(remote, part)):
                with _at_most(file.kind.limit):
                    self.action._connection.fetch_file(remote, name)
            part.chmod(files.FILE)
            if file.kind.read is not None:
                file.kind.read(part)
            if ".tfevents." in local.name and local.is_file():
                _grow(local, part)
            else:
                part.replace(local)
            os.utime(local, (file.changed, file.changed))
        except AnsibleConnectionFailure as error:
            raise HostUnreachable(str(error)) from None
        except AnsibleError as error:
            if part.stat().st_size >= file.kind.limit:
                raise LockstepError(f"it grows beyond {file.kind.limit:,} bytes") from None
            if self._shell(f"test -e {shlex.quote(remote)} && echo there").strip():
                raise HostUnreachable(f"{remote} can't be fetched: {error}") from None
        finally:
            part.unlink(missing_ok=True)

    def _link(self, remote: str, part: Path) -> bool:
        """Hard-link a file of this machine instead of copying it: snapshots are never changed, only replaced."""
        if self.action._connection.transport != "local":
            return False
        second = part.with_name(f"{part.name}-link")
        try:
            os.link(remote, second, follow_symlinks=False)
            second.replace(part)
        except OSError:  # another disk, another owner
            return False
        return not part.is_symlink()

    def _warn(self, subject: str, message: str) -> None:
        """Warn once per subject: a watched host is polled every second."""
        if message and subject not in self._warned:
            self._warned.add(subject)
            # Ansible shows its own warnings only at the end of the task.
            (self.say or _print)(f"[WARNING] {self.host or 'host'}: {message}")

    def _shell(self, script: str) -> str:
        try:
            completed = self.action._low_level_execute_command(script, sudoable=False, executable="/bin/bash")
        except AnsibleConnectionFailure as error:
            raise HostUnreachable(str(error)) from None
        if completed["rc"] == 255 and self.action._connection.transport != "local":
            raise HostUnreachable(printable(completed["stderr"].strip()))
        return str(completed["stdout"])


def _print(message: str) -> None:
    """Print on its own line, whatever another host's progress has drawn."""
    line = Line()
    line.update("")
    line.print(message)


def _bytes(output: str) -> bytes:
    """What a host sent, before Ansible decoded it."""
    return output.encode("utf-8", "surrogateescape")


@contextlib.contextmanager
def _at_most(size: int) -> Iterator[None]:
    """Limit file sizes meanwhile, whatever a host sends: the kernel kills a process that writes beyond."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _grow(local: Path, longer: Path) -> None:
    """Append what is new: TensorBoard keeps an event file open, and would never see another file in its place."""
    with local.open("ab") as existing, longer.open("rb") as new:
        new.seek(existing.tell())
        shutil.copyfileobj(new, existing)


def _forget_old_states(into: Path, remote_names: set[str]) -> None:
    """Delete training states that a worker has replaced by newer ones."""
    folders = {name.rpartition("/")[0] for name in remote_names if STATE.fullmatch(name)}
    for folder in folders:
        ours = sealed.names(into / folder)
        replaced = [name for name in ours if f"{folder}/{name}" not in remote_names]
        newest = next((name for name in reversed(ours) if name not in replaced), "")
        older = [name for name in replaced if sealed.step_of(name) < sealed.step_of(newest)]
        if older and not sealed.damage(into / folder / newest):
            for name in older:
                (into / folder / name).unlink()


def _forget_old_snapshots(into: Path) -> None:
    """Delete the snapshots that the run does not keep."""
    policy = snapshots_policy(into)
    if policy != "all":
        prune(into, policy, read_history(into / "history.csv"))


def _seconds(touched: str) -> float:
    """When metrics.jsonl last changed, by its host's clock; a worker with a full disk can only touch it."""
    return float(touched) if re.fullmatch(r"[0-9]{1,10}", touched.strip()) else 0.0


def _same(path: Path, size: int, changed: float) -> bool:
    return path.is_file() and path.stat().st_size == size and abs(path.stat().st_mtime - changed) < 0.01


def clear_marks(folder: Path) -> None:
    """Forget the ends of an earlier launch's workers."""
    for path in itertools.chain(folder.glob("ended-*"), folder.glob("failed-*")):
        path.unlink(missing_ok=True)


def mark(folder: Path, end: Literal["ended", "failed"], host: str) -> None:
    """Tell the watchers of the other hosts how this host's worker came to its end."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{end}-{host}").touch()


def since_mark(folder: Path, end: Literal["ended", "failed"], host: str) -> float | None:
    """Seconds since another host's worker came to that end, or None."""
    try:
        ages = [time.time() - path.stat().st_mtime for path in folder.glob(f"{end}-*") if path.name != f"{end}-{host}"]
    except FileNotFoundError:  # another command has just launched the run again
        return None
    return max(ages, default=None)
