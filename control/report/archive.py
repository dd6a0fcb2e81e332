"""The zip to hand in: report, the user's own files, tables, logs, the best snapshot. The same files give the same bytes."""

import io
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from control.remote.trainer_package import EPOCH
from control.report import repeating
from control.report.blocks import Block, Link, Section, Table, Text, code
from control.report.facts import Run
from control.report.own_files import OwnFile, OwnFiles
from trainer.common.files import replacing
from trainer.rundir.layout import snapshot_path

TABLES = {
    "history.csv": "the numbers of every epoch",
    "evaluations.csv": "the results on the test examples",
    "summary.json": "how the run ended",
    "config.yml": "every setting, to train it again",
    "cluster.json": "hosts, versions, the digests of data and code",
}
SWEEP_ENDINGS = (".csv", ".json", ".md", ".yml", ".png")
PACKED = (".keras", ".png")
"""Suffixes of files that are already compressed."""
UNKNOWN = "its clone names no address that other machines reach"

Content = Path | bytes


@dataclass(frozen=True)
class Parts:
    """Contents of a zip beside the report."""

    subject: str
    """Name of the zip, and of the one folder in it."""
    runs: Sequence[Run]
    sweep: Path | None
    own: Mapping[str, OwnFiles]
    """The user's files, by run."""
    trainers: Mapping[str, Path | None]
    """Trainers that no revision identifies, by file name; None for a trainer that is not on this machine."""
    address: str | None
    """Address of Lockstep's repository."""

    @classmethod
    def gather(cls, subject: str, runs: Sequence[Run], sweep: Path | None, project: Path, folders: Sequence[Path]) -> "Parts":
        """The parts of the zip of `subject`; `folders` may hold the trainers that ran."""
        names = dict.fromkeys(run.record.code for run in runs if not run.identified)
        trainers = {name: next((folder / name for folder in folders if (folder / name).is_file()), None) for name in names}
        own = {run.name: OwnFiles.of(run, f"code/{run.name}/" if len(runs) > 1 else "code/") for run in runs}
        return cls(subject, runs, sweep, own, trainers, repeating.address(project))

    @property
    def _own_files(self) -> list[tuple[str, OwnFile]]:
        """The user's files with their names in the zip, in the order of runs."""
        own = [self.own[run.name] for run in self.runs]
        return [(one.folder + name, file) for one in own for name, file in one.files.items()]

    def entries(self, pages: Path) -> dict[str, Content]:
        """The zip's content: name -> a file or its bytes, sorted by name; `pages` is the folder with the report."""
        packed: dict[str, Content] = {
            path.relative_to(pages).as_posix(): path for path in pages.rglob("*") if path.is_file() and path.suffix != ".zip"
        }
        packed |= {f"lockstep/{name}": path for name, path in self.trainers.items() if path is not None}
        packed |= {name: own.text.encode() for name, own in self._own_files}
        for run in self.runs:
            packed |= {f"runs/{run.name}/{path.relative_to(run.folder).as_posix()}": path for path in _run_files(run)}
        if sweep := self.sweep:
            paths = [path for path in sweep.iterdir() if path.suffix in SWEEP_ENDINGS and path.is_file()]
            packed |= {f"sweeps/{sweep.name}/{path.name}": path for path in paths}
        return {f"{self.subject}/{name}": packed[name] for name in sorted(packed)}

    def section(self, pages: Path) -> Section:
        """Section on the zip's files, those missing, and the address of Lockstep itself; `pages` has the report's pictures."""
        table = Table(f"All of it is in the folder {self.subject}", ["file", "what it is"], self._rows(pages))
        lockstep = self._lockstep()
        missing = [sentence for run in self.runs for sentence in self._missing(run)]
        lost = [name for name, path in self.trainers.items() if path is None]
        missing += [f"{code(name)}, which ran on the hosts, is not on this machine." for name in lost]
        return Section(f"What is in {code(f'{self.subject}.zip')}", [table, *lockstep, *([Text(missing)] if missing else [])])

    def _rows(self, pages: Path) -> list[list[str]]:
        rows = [
            ["index.html", "this report as one page, which needs nothing else"],
            ["README.md", "the same as text, with its pictures beside it"],
        ]
        rows += [["pictures/", "the report's pictures, for light and dark (`-dark`) pages"]] if (pages / "pictures").is_dir() else []
        rows += [["misclassified/", "test pictures that were taken for another class"]] if (pages / "misclassified").is_dir() else []
        rows += [[name, own.what] for name, own in self._own_files]
        for run in self.runs:
            folder, best = f"runs/{run.name}/", snapshot_path(run.folder, run.best["epoch"])
            rows += [[folder + name, what] for name, what in TABLES.items() if (run.folder / name).is_file()]
            rows += [[f"{folder}logs/", "curves: `tensorboard --logdir runs`"]] if (run.folder / "logs").is_dir() else []
            rows += [[f"{folder}evaluations/", "what the evaluated epochs get wrong"]] if (run.folder / "evaluations").is_dir() else []
            snapshot = [f"{folder}checkpoints/{best.name}", "the model after its best epoch: `keras.saving.load_model`"]
            rows += [snapshot] if best.is_file() else []
        rows += [[f"sweeps/{self.sweep.name}/", "times, analysis, pictures"]] if self.sweep else []
        rows += [[f"lockstep/{name}", "the part of Lockstep that ran on the hosts"] for name, path in self.trainers.items() if path]
        return [[code(name), what] for name, what in rows]

    def _missing(self, run: Run) -> list[str]:
        best, own = snapshot_path(run.folder, run.best["epoch"]), self.own[run.name]
        lost = f"The snapshot of the best epoch of {code(run.name)} ({best.name}) is missing: there is none in checkpoints/."
        return [*([] if best.is_file() else [lost]), *([f"The dataset's file is missing: {code(own.missing)}."] if own.missing else [])]

    def _lockstep(self) -> list[Block]:
        used = dict.fromkeys(run.revision for run in self.runs)
        what = f"Lockstep itself is not in it. What trained is {'; '.join(used)}" if used else "Lockstep itself is not in it"
        return [Text([f"{what}."]), Link("It is from", self.address)] if self.address else [Text([f"{what}; {UNKNOWN}."])]


def _run_files(run: Run) -> Iterator[Path]:
    """Existing files of the run: tables, TensorBoard's events, the best snapshot."""
    paths = [*(run.folder / name for name in TABLES), snapshot_path(run.folder, run.best["epoch"])]
    yield from (path for path in paths if path.is_file())
    for folder in ("logs", "evaluations"):
        yield from (path for path in (run.folder / folder).rglob("*") if path.is_file() and not path.name.startswith("."))


def write_zip(path: Path, contents: Mapping[str, Content]) -> None:
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
