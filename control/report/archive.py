"""The zip to hand in: code, report, logs, tables, the best snapshot. The same files give the same bytes."""

import io
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from control.report.facts import Run
from control.runs.package import EPOCH
from trainer.files import replacing
from trainer.rundir import snapshot_path

TABLES = ("history.csv", "evaluations.csv", "summary.json", "config.yml", "cluster.json")
SWEEP_ENDINGS = (".csv", ".json", ".md", ".yml", ".png")
PACKED = (".keras", ".png", ".zip")
"""Already compressed."""
FOLDERS = ("trainer", "control", "playbooks", "plugins", "roles", "templates", "requirements", "inventory/local", "inventory/sample")
ROOT_ENDINGS = (".yml", ".cfg", ".toml", ".md")
ROOT_NAMES = ("LICENSE", "Makefile")

Content = Path | bytes


def trainer_archives(runs: Sequence[Run], folders: Sequence[Path]) -> dict[str, Path | None]:
    """The trainers that the runs used, by file name; None for one that is in none of the folders."""
    names = dict.fromkeys(run.cluster["code"] for run in runs)
    return {name: next((folder / name for folder in folders if (folder / name).is_file()), None) for name in names}


def entries(runs: Sequence[Run], sweep: Path | None, pages: Path, project: Path, trainers: Mapping[str, Path | None]) -> dict[str, Content]:
    """The zip's content: name -> a file or its bytes, sorted by name.

    Args:
        runs: whose tables, logs and best snapshots are included.
        sweep: folder of a sweep, or None.
        pages: folder with the report itself.
        project: the project's folder, for playbooks and the rest of the code.
        trainers: result of `trainer_archives`.
    """
    packed: dict[str, Content] = {path.name: path for path in pages.iterdir() if path.suffix != ".zip"}
    packed |= {f"code/{name}": content for name, content in _code(project, trainers).items()}
    for run in runs:
        packed |= {f"runs/{run.name}/{path.relative_to(run.folder).as_posix()}": path for path in _run_files(run)}
    if sweep is not None:
        packed |= {f"sweeps/{sweep.name}/{path.name}": path for path in sweep.iterdir() if path.suffix in SWEEP_ENDINGS and path.is_file()}
    return dict(sorted(packed.items()))


def _run_files(run: Run) -> Iterator[Path]:
    """The existing ones of: tables, TensorBoard's events, the best snapshot."""
    paths = [*(run.folder / name for name in TABLES), snapshot_path(run.folder, run.best["epoch"])]
    yield from (path for path in paths if path.is_file())
    for folder in ("logs", "evaluations"):
        yield from (path for path in (run.folder / folder).rglob("*") if path.is_file() and not path.name.startswith("."))


def _code(project: Path, trainers: Mapping[str, Path | None]) -> dict[str, Content]:
    """The repository's code, with the trainers that the runs used replacing its own."""
    used = {name: path for name, path in trainers.items() if path is not None}
    contents: dict[str, Content] = {}
    for name in _sources(project):
        if not (name.startswith("trainer/") and used and len(used) == len(trainers)):
            contents[name] = project / name
    for name, path in used.items():
        with zipfile.ZipFile(path) as archive:
            folder = "" if len(trainers) == 1 else f"{PurePosixPath(name).stem}/"
            contents |= {folder + member: archive.read(member) for member in archive.namelist() if not member.endswith("/")}
    return contents


def _sources(project: Path) -> list[str]:
    """Names of the code's files: those tracked by git, or all files outside git."""
    argv = ["git", "ls-files", "-z", "--", *FOLDERS, *_root_files(project)]
    try:
        completed = subprocess.run(argv, cwd=project, capture_output=True, text=True, check=False, timeout=30)
    except FileNotFoundError:
        return _untracked(project)
    names = completed.stdout.rstrip("\0").split("\0") if completed.returncode == 0 and completed.stdout else _untracked(project)
    return [name for name in names if (project / name).is_file()]


def _root_files(project: Path) -> list[str]:
    return sorted(path.name for path in project.iterdir() if path.is_file() and (path.suffix in ROOT_ENDINGS or path.name in ROOT_NAMES))


def _untracked(project: Path) -> list[str]:
    paths = [path.relative_to(project) for folder in FOLDERS for path in sorted((project / folder).rglob("*")) if path.is_file()]
    kept = (path.as_posix() for path in paths if not any(part.startswith((".", "__pycache__")) for part in path.parts))
    return [*kept, *_root_files(project)]


def write(path: Path, contents: Mapping[str, Content]) -> None:
    """Write the zip, whole or not at all: fixed dates, in the order given."""
    with replacing(path) as part, zipfile.ZipFile(part, "w") as archive:
        for name, content in contents.items():
            info = zipfile.ZipInfo(name, EPOCH)
            info.create_system, info.external_attr = 3, 0o644 << 16
            info.compress_type = zipfile.ZIP_STORED if name.endswith(PACKED) else zipfile.ZIP_DEFLATED
            info.file_size = len(content) if isinstance(content, bytes) else content.stat().st_size
            source = io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")
            with source, archive.open(info, "w") as stream:
                shutil.copyfileobj(source, stream, 2**20)


def sentences(runs: Sequence[Run], sweep: Path | None, trainers: Mapping[str, Path | None]) -> list[str]:
    """The zip's content, and what is missing from it."""
    lines = ["README.md and index.html, this report, with its pictures."]
    if not trainers:
        lines.append("code: the playbooks and the trainer as they are now.")
    elif all(trainers.values()):
        lines.append(f"code: the playbooks as they are now, and exactly the trainer that ran ({', '.join(trainers)}).")
    else:
        lost = ", ".join(name for name, path in trainers.items() if path is None)
        lines.append(f"code: the playbooks and the trainer as they are now; {lost}, which ran, is not on this machine.")
    for run in runs:
        tables = ", ".join(name for name in TABLES if (run.folder / name).is_file())
        best = snapshot_path(run.folder, run.best["epoch"])
        snapshot = f", and the snapshot of the best epoch ({best.name})"
        if not best.is_file():
            snapshot = f"; the snapshot of the best epoch ({best.name}) is missing: there is none in checkpoints/"
        lines.append(f"runs/{run.name}: {tables}, TensorBoard's logs{snapshot}.")
    if sweep is not None:
        lines.append(f"sweeps/{sweep.name}: times, analysis, pictures.")
    return lines
