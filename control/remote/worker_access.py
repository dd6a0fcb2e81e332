"""Look at a worker and fetch a run's files over the host's connection (local or SSH)."""

import functools
import os
import re
import resource
import shlex
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError

from control.common.progress_line import Line
from control.remote import admission, log_lines, worker_files
from control.remote.follow import Feed, HostUnreachable
from control.remote.follow import Line as FeedLine
from control.remote.follow_program import READ_ONLY, REMOVED
from trainer.common import files, limits
from trainer.common.errors import LockstepError
from trainer.common.safe_text import printable
from trainer.host import sealed_files
from trainer.rundir.launch_record import LaunchRecord
from trainer.rundir.layout import prune, snapshots_policy
from trainer.rundir.metrics_log import METRICS, WORKER_LOG
from trainer.rundir.schemas import read_history

STATE = re.compile(r"(.*/)?(state|memory)/step-\d+\.npz")
LOOK = 4 * 2**20
"""Bytes of metrics.jsonl per look; the next look continues there."""
FETCHING = threading.Lock()
"""One file at a time: what bounds its size holds for the whole process, which may watch several hosts."""
FOLLOW_S = 0.5
"""Between two checks while a worker is followed."""
TAIL = 256 * 1024
"""Bytes at the end of worker.log that are searched for its last lines."""
SNAPSHOT = re.compile(r"(.*/)?checkpoints/epoch-\d+\.keras")
ATTEMPTS = 2
"""How often an invalid file is fetched: a file broken in transfer is intact the second time."""


@dataclass
class Seen:
    """One look at a worker."""

    records: list[dict[str, Any]]
    """New records of metrics.jsonl."""
    exit: dict[str, Any] | None
    """exit.json, once there."""
    alive: bool
    """True if the tmux session exists."""
    heard: float | None
    """Age in seconds of the last record, by the worker's own clock; None while older records are still unread."""
    ahead: float
    """Seconds by which the host's clock is ahead of this machine's, less the time that the look took to arrive."""
    unclear: str = ""
    """Why an existing exit.json is invalid."""
    more: bool = False
    """True if more records are waiting than fit into this look."""
    lines: list[str] = field(default_factory=list)
    """New lines of the log of a script, which has no records."""
    fault: str = ""
    """`REMOVED` or `READ_ONLY` if its folder is, else empty."""


def of_fault(fault: str, folder: str) -> str:
    """Reason, in words, why a worker can't write its files; empty if there is none."""
    words = {
        REMOVED: f"somebody removed or moved {folder} while it trains: what it writes is lost",
        READ_ONLY: f"the file system of {folder} is read-only: nothing is saved. Fix there: dmesg, then mount -o remount,rw",
    }
    return words.get(fault, "")


@dataclass
class Worker:
    """A worker's files on its host."""

    action: Any
    run: str
    folder: str
    session: str
    script: bool = False
    """True if the worker runs a user's script: then its log is followed."""
    log: str = WORKER_LOG
    """Name of its log."""
    say: Callable[[str], None] | None = None
    """Shows urgent messages; by default on their own line."""
    _last: float | None = field(default=None)
    _log_shown: bool = False
    _warned: set[str] = field(default_factory=set)
    _unfit: dict[tuple[str, float], int] = field(default_factory=dict)
    """How often a file with that modification time was fetched and found invalid."""

    @property
    def host(self) -> str | None:
        """Name under which it writes; None for a folder that several workers write to."""
        folder = PurePosixPath(self.folder)
        return folder.name if folder.parent.name == "workers" else None

    @functools.cached_property
    def _metrics(self) -> Feed:
        if self.script:
            return self._log
        return Feed(self.action, self.folder, self.session, METRICS, LOOK)

    @functools.cached_property
    def _log(self) -> Feed:
        feed = Feed(self.action, self.folder, self.session, self.log, TAIL)
        feed.skip()
        return feed

    def close(self) -> None:
        """End what reads on the host."""
        self._metrics.close()
        self._log.close()

    def poll(self, latest: bool = False) -> Seen:
        """Look once, and read new records.

        Args:
            latest: if one look can't take all, take the end and not the beginning.

        Raises:
            HostUnreachable: the host can't be reached, or gives no valid answer.
        """
        if latest:
            self._metrics.skip()
        return self._seen(self._metrics.once(), latest)

    def watch(self, timeout: float, every: float = 0.0) -> Seen | None:
        """Wait for news, over one connection that stays open until `close`.

        Args:
            timeout: seconds after which to return None.
            every: seconds between two looks at a worker that trains; its end is told at once.

        Raises:
            HostUnreachable: as `poll`; the next call connects again.
        """
        line = self._metrics.next(timeout, every)
        return None if line is None else self._seen(line)

    def follow(self, show: Callable[[dict[str, Any]], None], check: Callable[[], None] = lambda: None) -> Seen:
        """Watch until the worker ends, and return the last look.

        Args:
            show: called with every record.
            check: called every half second while the worker is alive; raises to leave it.

        Raises:
            HostUnreachable: as `poll`.
        """
        try:
            while True:
                seen = self.watch(FOLLOW_S)
                for record in seen.records if seen else []:
                    show(record)
                if seen and (seen.exit is not None or not seen.alive):
                    return seen
                check()
        finally:
            self.close()

    def _seen(self, line: FeedLine, latest: bool = False) -> Seen:
        lines, new = (self._lines(line), []) if self.script else ([], self._records(line, latest))
        if self.script and line.touched:
            self._last = line.touched
        heard = line.t - max(self._last, line.touched) if self._last is not None and not line.more else None
        unclear, end = "", None
        try:
            end = worker_files.end(line.exit) if line.exit.strip() else None
        except LockstepError as error:
            unclear = str(error)
        return Seen(new, end, line.alive, heard, self._metrics.ahead, unclear, line.more and not latest, lines, line.folder)

    def _records(self, line: FeedLine, latest: bool) -> list[dict[str, Any]]:
        """The records in whole lines of metrics.jsonl."""
        whole, _, torn = line.news.rpartition("\n")
        lines = whole.split("\n")[1 if latest and line.begin else 0 :]
        new, others = worker_files.metrics(lines)
        # A line longer than a look comes in pieces.
        if others := others + bool(torn and line.more):
            self._warn("records", f"metrics.jsonl: {others:,} lines are not valid records and are skipped")
        if new:
            self._last = new[-1]["t"]
        return new

    def last_lines(self, count: int = 20) -> list[str]:
        """The end of the current launch's part of worker.log."""
        self._log.skip()
        return log_lines.readable_lines(log_lines.of_last_launch(self._log.once().news.split("\n")))[-count:]

    def new_lines(self, count: int, timeout: float) -> tuple[list[str], bool]:
        """Lines added to worker.log since the last call, and whether the worker may add more.

        Args:
            count: maximum number of the current launch's lines that the first call returns.
            timeout: seconds to wait for them.

        Raises:
            HostUnreachable: the host can't be reached, or gives no valid answer.
        """
        line = self._log.next(timeout, 0.0)
        if line is None:
            return [], True
        first = not self._log_shown
        lines = self._lines(line)
        return lines[-count:] if first else lines, line.alive or line.more

    def _lines(self, line: FeedLine) -> list[str]:
        """The lines that were added to worker.log; the first time, those of the current launch."""
        lines, first, self._log_shown = line.news.split("\n"), not self._log_shown, True
        return log_lines.readable_lines(log_lines.of_last_launch(lines) if first else lines)

    def collect(
        self,
        into: Path,
        only: str | None = None,
        keep: bool = False,
        without: tuple[str, ...] = (),
        outputs: Sequence[int] = (),
        wanted: Callable[[str], bool] | None = None,
    ) -> list[str]:
        """Fetch new or changed files of the run directory, each whole or not at all.

        Args:
            into: the run directory on the control node.
            only: a folder inside the run directory; nothing else is fetched.
            keep: leave the local summary.json alone.
            without: folders not to fetch.
            outputs: bytes of each output of a prediction.
            wanted: which files to fetch of those that are admitted, by name in the run directory; they are fetched once.
        """
        allowed = admission.kinds(self.host, admission.parameters(into), outputs)
        quoted = shlex.quote(self.run)
        taken, refused = admission.admit(self._shell(admission.listing(quoted, only, allowed)), allowed, only, admission.room(into))
        # A script's output is the chief's, and that of others only where the user named it.
        script = LaunchRecord.read(into).script
        without += ("output",) if only and script and not script["outputs"] else ()
        begin, fetched = len(f"{only}/") if only else 0, []
        for file in taken:
            if set(without) & set(file.name.split("/")) or (keep and file.name == "summary.json") or (wanted and not wanted(file.name)):
                continue
            tried = self._unfit.get((file.name, file.changed), 0)
            try:
                path = admission.destination(into, file.name)
                if tried < ATTEMPTS and not (path.exists() if wanted else _same(path, file.size, file.changed)):
                    with FETCHING:
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
            policy, monitor = snapshots_policy(into)
            if policy != "all":
                prune(into, policy, read_history(into / "history.csv"), monitor)
        return fetched

    def _fetch(self, remote: str, local: Path, file: admission.File) -> None:
        handle, name = tempfile.mkstemp(dir=local.parent, prefix=".part-")
        os.close(handle)
        part = Path(name)
        try:
            if not (SNAPSHOT.fullmatch(file.name) and self._link(remote, part)):
                # Whatever a host sends: the kernel kills a process that writes beyond.
                with limits.at_most(resource.RLIMIT_FSIZE, file.kind.limit):
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


def _grow(local: Path, longer: Path) -> None:
    """Append what is new: TensorBoard keeps an event file open, and would never see another file in its place."""
    with local.open("ab") as existing, longer.open("rb") as new:
        new.seek(existing.tell())
        shutil.copyfileobj(new, existing)


def _forget_old_states(into: Path, remote_names: set[str]) -> None:
    """Delete training states that a worker has replaced by newer ones."""
    folders = {name.rpartition("/")[0] for name in remote_names if STATE.fullmatch(name)}
    for folder in folders:
        ours = sealed_files.names(into / folder)
        replaced = [name for name in ours if f"{folder}/{name}" not in remote_names]
        newest = next((name for name in reversed(ours) if name not in replaced), "")
        older = [name for name in replaced if sealed_files.step_of(name) < sealed_files.step_of(newest)]
        if older and not sealed_files.damage(into / folder / newest):
            for name in older:
                (into / folder / name).unlink()


def _same(path: Path, size: int, changed: float) -> bool:
    return path.is_file() and path.stat().st_size == size and abs(path.stat().st_mtime - changed) < 0.01


def clear_marks(folder: Path) -> None:
    """Forget the generations of an earlier launch."""
    for path in folder.glob("*"):
        path.unlink(missing_ok=True)
