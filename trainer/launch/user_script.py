"""Start a user's own script as one worker: its files, its environment, its end.

The environment is that of torchrun (`torch.distributed.run`), and TF_CONFIG. The script is a child process: it has this process' standard
streams and its terminal's signals, and its exit code becomes this one's. One that stays stopped while others wait for it is ended, and one
whose time is over.
"""

import contextlib
import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.common.errors import LockstepError, code_of
from trainer.common.files import write_text
from trainer.network.member import Member
from trainer.network.peer_watch import ANSWER_S
from trainer.rundir.layout import output_of, part_of

KEY_FILE = "secret"
"""File in the worker's folder, for this user only: workers of one launch know each other by its content."""
UNPACKED = "unpacked"
"""Holds the digest of the archive whose files are in the script's folder."""
OUT_OF_TIME = 124
"""Exit code of a script whose time is over, as of coreutils' `timeout`."""
GRACE_S = 30.0
"""Seconds between SIGTERM and SIGKILL for a script whose time is over."""
HELD_BACK = ("PYTHONSAFEPATH", "OPENBLAS_NUM_THREADS")
"""Variables of Lockstep's own Python: a script finds its neighbours, and calls NumPy from one thread."""


@dataclass(frozen=True)
class Script:
    """Script to start, with its files and peers."""

    run: Path
    """The run directory on this host."""
    host: str
    """Inventory name of this host."""
    archive: Path
    """The script's files on the shared folder."""
    sha256: str
    """Expected digest of the archive."""
    main: str
    """The file to start."""
    arguments: Sequence[str]
    outputs: Sequence[str]
    """Files and folders that the script leaves in its working directory, to be kept as its output."""
    peers: Sequence[str]
    """`address:port` of all workers, by rank, for the exchange of `lockstep.distribute`."""
    restarts: int
    time_limit: float = 0.0
    """Seconds after which it is ended; 0: never."""

    @classmethod
    def read(cls, given: dict[str, Any]) -> "Script":
        """The script as the control node describes it (`control.runs.planning.script_plan.command`)."""
        return cls(**given | {name: Path(given[name]) for name in ("run", "archive")})

    @property
    def own(self) -> Path:
        """This worker's part of the run directory."""
        return part_of(self.run, self.host)

    @property
    def folder(self) -> Path:
        """The script's files and working directory."""
        return self.own / "script"

    def output(self, rank: int) -> Path:
        """Where the script may leave files: the chief's are the run's."""
        return output_of(self.run, self.host, rank == 0)


def main(script: Script) -> int:
    """Run the script to its end; its exit code, 128 and the signal's number if a signal ended it.

    Raises:
        LockstepError: its archive is missing, or was changed since it was published.
    """
    member = Member.from_environment()
    _unpack(script)
    output = script.output(member.rank)
    output.mkdir(parents=True, exist_ok=True)
    patience = ANSWER_S if member.workers > 1 else 0.0
    variables = _environment(script, member, os.environ)
    code = _run([sys.executable, script.main, *script.arguments], script.folder, variables, patience, script.time_limit)
    _keep(script.folder, output, script.outputs)
    return code


def _unpack(script: Script) -> None:
    """Put the script's files into its folder; what an earlier start of the run left there stays."""
    try:
        data = script.archive.read_bytes()
    except OSError as error:
        raise LockstepError(f"{script.archive}: {error.strerror}. Fix: run the same command again; it sends the script again") from None
    if hashlib.sha256(data).hexdigest() != script.sha256:
        raise LockstepError(
            f"{script.archive} is not what was published, so it is not run: somebody else wrote it. Fix: run the same command again; it "
            "sends the script again; and see who can write that folder"
        )
    script.folder.mkdir(parents=True, exist_ok=True)
    unpacked = script.own / UNPACKED
    again = unpacked.is_file() and unpacked.read_text(encoding="utf-8") == script.sha256
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            # The script may have written to a file that was sent: a log, a model, a backup.
            if not (again and (script.folder / name).exists()):
                archive.extract(name, script.folder)
    write_text(unpacked, script.sha256)


def _environment(script: Script, member: Member, given: Mapping[str, str]) -> dict[str, str]:
    """The script's environment variables, from this process' own."""
    host, _, port = member.addresses[0].rpartition(":")
    package = Path(__file__).parents[1]
    return {name: value for name, value in given.items() if name not in HELD_BACK} | {
        "PYTHONPATH": os.pathsep.join([str(package / "keras_fit" / "site"), str(package.parent)]),
        "RANK": str(member.rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(member.workers),
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": host.strip("[]"),
        "MASTER_PORT": port,
        "LOCKSTEP_RUN": script.run.name,
        "LOCKSTEP_RANK": str(member.rank),
        "LOCKSTEP_WORKERS": str(member.workers),
        "LOCKSTEP_OUTPUT": str(script.output(member.rank)),
        "LOCKSTEP_RESTART": str(script.restarts),
        "LOCKSTEP_PEERS": ",".join(script.peers),
        "LOCKSTEP_SECRET": str(script.own / KEY_FILE),
    }


def _run(argv: Sequence[str], folder: Path, variables: Mapping[str, str], patience: float, limit: float) -> int:
    """Exit code of a process, as a shell's.

    One that stays stopped for `patience` seconds, or has run for `limit` seconds, is ended (0: never).
    """
    # The script gets the same signals; this process outlives it. A handler, unlike SIG_IGN, is not inherited.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    stopped = (
        f"lockstep: the script of rank {variables['RANK']} has been stopped (SIGSTOP, SIGTSTP) for {patience:.0f} s, and other workers may "
        f"wait for it: it is ended. Fix: ansible-playbook train.yml -e run={variables['LOCKSTEP_RUN']} starts all again"
    )
    with subprocess.Popen(argv, cwd=folder, env=dict(variables)) as child:
        signal.signal(signal.SIGALRM, lambda *_: _end(child.pid, stopped))
        words = f"the script of rank {variables['RANK']} has run for {limit:.0f} s (time_limit): it is ended"
        with _limited(child.pid, limit, words) as late:
            _outlive(child.pid, patience)
    # A script may save its state and end well, but it is not done.
    return (code_of(child.returncode) or OUT_OF_TIME) if late.is_set() else code_of(child.returncode)


@contextlib.contextmanager
def _limited(child: int, seconds: float, words: str) -> Iterator[threading.Event]:
    """Send SIGTERM to a child after `seconds`, and end the child's processes if it stays; yields an event that is set with SIGTERM."""
    over, late = threading.Event(), threading.Event()

    def end() -> None:
        if over.wait(seconds):
            return
        late.set()
        print(f"lockstep: {words}", file=sys.stderr, flush=True)
        os.kill(child, signal.SIGTERM)
        if not over.wait(GRACE_S):
            _end(child, f"lockstep: it goes on {GRACE_S:.0f} s after SIGTERM: it is killed")

    thread = threading.Thread(target=end, daemon=True)
    if seconds:
        thread.start()
    yield late
    over.set()
    if seconds:
        thread.join()


def _outlive(child: int, patience: float) -> None:
    """Return when a child has ended; SIGALRM comes when it has been stopped for `patience` seconds."""
    changes, paused = os.WSTOPPED | os.WCONTINUED, (os.CLD_STOPPED, os.CLD_CONTINUED)
    # WNOWAIT leaves the end to `Popen`, so that the number stays the child's.
    while (change := os.waitid(os.P_PID, child, os.WEXITED | changes | os.WNOWAIT)) and change.si_code in paused:
        latest = os.waitid(os.P_PID, child, changes | os.WNOHANG)
        signal.setitimer(signal.ITIMER_REAL, patience if latest and latest.si_code == os.CLD_STOPPED else 0.0)
    signal.setitimer(signal.ITIMER_REAL, 0.0)


def _end(child: int, message: str) -> None:
    """Kill a child and what it has started."""
    print(message, file=sys.stderr, flush=True)
    for process in _family(child):
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)


def _family(process: int) -> list[int]:
    """A process, its children, theirs, and so on."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parent = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    family = [process]
    for one in family:
        family += children.get(one, [])
    return family


def _keep(folder: Path, output: Path, names: Sequence[str]) -> None:
    """Put plain files that a script left below its working directory into its output; nothing through a link; what is missing is named."""
    for name in names:
        source = folder / name
        if linked := next((one for one in (source, *source.parents) if folder in one.parents and one.is_symlink()), None):
            print(f"outputs={name}: {linked.relative_to(folder)} is a link, which is not followed", flush=True)
        elif source.is_dir():
            for path in _files(source):
                _copy(path, output / path.relative_to(folder))
        elif source.is_file():
            _copy(source, output / name)
        else:
            print(f"outputs={name}: the script left no such file or folder", flush=True)


def _files(folder: Path) -> Iterator[Path]:
    """Plain files in a folder and in those inside of it, none of them a link, in order."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        yield from (path for path in (Path(place) / name for name in sorted(names)) if path.is_file() and not path.is_symlink())


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        with contextlib.suppress(shutil.SameFileError):
            shutil.copy2(source, target)
