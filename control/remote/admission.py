"""Files that a run directory may hold, and which of a host's files are fetched. Pure functions except `room`, `parameters`, `destination`.

A host lists the files of a run directory; nothing in that listing is trusted. A name is accepted only if workers use it for their
files, so no name can be absolute, climb, end a line or belong to another worker.
"""

import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from control.remote import worker_files
from trainer.common import files
from trainer.common.errors import LockstepError
from trainer.common.safe_text import printable
from trainer.host import sealed_files
from trainer.rundir import schemas
from trainer.rundir.launch_record import LaunchRecord

ANY_HOST = "[A-Za-z0-9][A-Za-z0-9._-]{0,252}"
MB = 2**20
GB = 2**30
FILES = 20_000
"""Maximum number of files in one run directory."""
REFUSED = 1_000
"""Maximum number of files with other names that a host counts."""
RESERVE = GB
"""Bytes that stay free on this machine."""
LATEST = 2**32
"""Latest modification time accepted, in seconds since 1970."""
UNKNOWN_PARAMETERS = 10**9
HEADER = 2**12
"""Most bytes before the numbers of a file in NumPy's format."""
PART = "[A-Za-z0-9_][A-Za-z0-9 _.=+@%-]{0,99}"
OUTPUT_PATTERN = f"({PART}/){{0,7}}{PART}"
OUTPUT = re.compile(OUTPUT_PATTERN)
"""Names of files that a user's script leaves."""
SPECIAL = re.compile(r"([\\^$.|?*+()\[{])")


@dataclass(frozen=True)
class Kind:
    """A kind of file that a worker writes."""

    pattern: str
    """Matches the whole name below the run directory; valid for Python and for POSIX (`find -regextype posix-extended`)."""
    limit: int
    """Maximum size in bytes."""
    read: Callable[[Path], object] | None = None
    """Reads the file as its readers do; raises LockstepError."""


@dataclass(frozen=True)
class File:
    """A file on a host that may be fetched."""

    name: str
    """Path below the run directory."""
    size: int
    changed: float
    """Modification time, seconds since 1970."""
    kind: Kind


@dataclass(frozen=True)
class Refusal:
    """A file that is not fetched, and why."""

    name: str
    why: str

    def __str__(self) -> str:
        """For a line with several."""
        return f"{printable(self.name, 120)} ({self.why})"


def kinds(host: str | None, parameters: int | None, outputs: Sequence[int] = ()) -> tuple[Kind, ...]:
    """The kinds of file that a worker's run directory may hold.

    Args:
        host: the worker's name; None: any worker (a folder that several write to, as under Slurm).
        parameters: parameter count of the run's model; None: unknown.
        outputs: bytes of each output of a prediction.
    """
    numbers = UNKNOWN_PARAMETERS if parameters is None else parameters
    snapshot, state = GB + 16 * numbers, GB + 64 * numbers
    own = "workers/" + (ANY_HOST if host is None else SPECIAL.sub(r"\\\1", host))
    job = f"({own}|evaluate{'|predict' if outputs else ''})"
    return (
        Kind("history[.]csv", 64 * MB, schemas.read_history),
        Kind("summary[.]json", MB, _reading(worker_files.summary)),
        Kind("checkpoints/epoch-[0-9]{4,9}[.]keras", snapshot),
        Kind("state/step-[0-9]{1,18}[.]npz", state, _check_sealed),
        Kind("logs/(train|validation)/events[.]out[.]tfevents[.][A-Za-z0-9._-]{1,200}", GB),
        Kind(f"{own}/memory/step-[0-9]{{1,18}}[.]npz", state, _check_sealed),
        Kind(f"{job}/exit[.]json", 64 * 1024, _reading(worker_files.end)),
        Kind(f"{job}/(worker[.]log|metrics(-[0-9a-z]{{1,20}})?[.]jsonl)", 4 * GB),
        Kind(f"{job}/(tf_config[.]json|run_worker[.]sh|stop|job)", MB),
        Kind(f"{own}/ps[.]log", 4 * GB),
        Kind("evaluate/epoch-[0-9]{4,9}[.]json", 256 * MB, _reading(worker_files.evaluation)),
        Kind(f"{own}/evaluations/epoch-[0-9]{{4,9}}[.]json", 16 * MB, _reading(worker_files.evaluation)),
        *(Kind(f"predict/output-{number:04d}[.]npy", size + HEADER) for number, size in enumerate(outputs)),
        Kind(f"({own}/)?output/{OUTPUT_PATTERN}", 64 * GB),
        Kind("slurm-[0-9]{1,18}[.]log|train[.]sbatch|run[.]json", GB),
    )


STAY = (
    "(config[.]yml|cluster[.]json|evaluate/image|predict/.*|(.*/)?[.]part-[^/]*"
    "|(workers/[^/]*|evaluate)/tmp/.*"
    f"|workers/[^/]*/(script/.*|secret|unpacked|supervisor[.]json)|(workers/[^/]*/)?{sealed_files.ASIDE}/[^/]*)"
)
"""Files that are not fetched: written by this machine, of a prediction by another command, half written, temporary, a script's working
directory, a supervisor's, or put aside as damaged."""


def _check_sealed(path: Path) -> None:
    if reason := sealed_files.damage(path):
        raise LockstepError(f"is damaged ({reason}); what was collected before stays")


def _reading(read: Callable[[str], object]) -> Callable[[Path], object]:
    return lambda path: read(path.read_text(encoding="utf-8", errors="replace"))


def listing(run: str, only: str | None, allowed: Sequence[Kind]) -> str:
    """A shell script that lists a run directory on its host: its files, an empty name, then the names that it may not hold.

    Every entry ends with NUL. Links are neither followed nor fetched; if the run directory itself is a link, the script prints
    only that.

    Args:
        run: the run directory, quoted for the shell.
        only: a folder inside it, quoted; None: all of it.
        allowed: what it may hold.
    """
    below = f"./{only}" if only else "."
    parts = (only or "").split("/")
    folders = [run, *(f"{run}/{'/'.join(parts[:count])}" for count in range(1, len(parts) + 1) if only)]
    patterns = shlex.quote(f"[.]/({'|'.join(kind.pattern for kind in allowed)})")
    find = f"find {below} -regextype posix-extended"
    return (
        f'for f in {" ".join(folders)}; do if [ -L "$f" ]; then printf \'\\0%s\\0\' "$f"; exit; fi; done; '
        f"cd {run} 2>/dev/null && [ -d {below} ] || exit 0; "
        f"{find} -type f -regex {patterns} -printf '%s %T@ %P\\0' 2>/dev/null | head -z -n {FILES + 1}; printf '\\0'; "
        f"{find} ! -type d ! -regex '[.]/{STAY}' ! '(' -type f -regex {patterns} ')' -printf '%P\\0' 2>/dev/null "
        f"| head -z -n {REFUSED}; true"
    )


def admit(entries: str, allowed: Sequence[Kind], only: str | None, room: int) -> tuple[list[File], list[Refusal]]:
    """Split a host's listing into files to fetch and files to refuse.

    Args:
        entries: output of `listing`.
        allowed: what the directory may hold.
        only: the folder that was asked for; names are still relative to the run directory.
        room: bytes that may be fetched in total.
    """
    listed, _, others = f"\0{entries}".partition("\0\0")
    lines = [entry for entry in listed.split("\0") if entry]
    refused = [Refusal(f"{len(lines) - FILES:,} files or more", f"a run has at most {FILES:,}")] if len(lines) > FILES else []
    refused += [Refusal(name, "not a file that workers write") for name in others.split("\0")[: REFUSED + 1] if name]
    taken: list[File] = []
    for entry in lines[:FILES]:
        one = _file(entry, allowed, only)
        if isinstance(one, Refusal):
            refused.append(one)
        elif one.size > room:
            refused.append(Refusal(one.name, f"{one.size / MB:,.0f} MB do not fit on this machine's disk"))
        else:
            taken.append(one)
            room -= one.size
    return taken, refused


def _file(entry: str, allowed: Sequence[Kind], only: str | None) -> File | Refusal:
    size, changed, name = [*entry.split(" ", 2), "", ""][:3]
    name = f"{only}/{name}" if only else name
    kind = next((kind for kind in allowed if re.fullmatch(kind.pattern, name)), None)
    if kind is None or not re.fullmatch(r"[0-9]{1,18}", size) or not re.fullmatch(r"[0-9]{1,10}([.][0-9]{0,12})?", changed):
        return Refusal(name, "not a file that workers write")
    if int(size) > kind.limit:
        return Refusal(name, f"{int(size) / MB:,.0f} MB, at most {kind.limit / MB:,.0f} are its kind's")
    return File(name, int(size), min(float(changed), LATEST), kind)


def room(into: Path) -> int:
    """Bytes that may be fetched into a folder, which need not exist yet."""
    parent = next(folder for folder in (into, *into.absolute().parents) if folder.is_dir())
    return shutil.disk_usage(parent).free - RESERVE


def parameters(into: Path) -> int | None:
    """Parameter count of the model of a run directory on the control node; None if not recorded."""
    total = LaunchRecord.read(into).parameters.get("total")
    return int(total) if isinstance(total, int) else None


def destination(root: Path, name: str) -> Path:
    """Where a file goes below `root`; creates its folder and refuses links on the way.

    Raises:
        LockstepError: the name leads out of `root`, or a part of the path is a link.
        OSError: the folder can't be created.
    """
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or name.startswith("/"):
        raise LockstepError("its name leads out of the run directory")
    path = root
    files.make_folder(root)
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise LockstepError(f"{'/'.join(path.relative_to(root).parts)} is a link on this machine")
        if path != root.joinpath(*parts):
            path.mkdir(mode=files.FOLDER, exist_ok=True)
    return path


def summary(refused: Iterable[Refusal]) -> str:
    """One line about what was not fetched; empty for nothing."""
    all_of_them = list(refused)
    shown = ", ".join(str(one) for one in all_of_them[:3])
    more = f" and {len(all_of_them) - 3:,}{' or' if len(all_of_them) >= REFUSED else ''} more" if len(all_of_them) > 3 else ""
    return f"not fetched: {shown}{more}" if all_of_them else ""
