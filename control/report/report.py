"""The report of a run, or of several compared: README.md, index.html, pictures and one zip, from the runs' files.

Every sentence with a figure comes from a file; if one is missing, the sentence names it and the command that makes it. The
same files give the same report, byte for byte.
"""

import filecmp
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from control import plots
from control.report import accuracy, archive, comparison, metrics, mistakes, sweeps, trained
from control.report.blocks import Items, Section, code
from control.report.facts import Run
from control.report.render import Renderer, Report
from control.text import listed
from trainer.files import replacing, write_text

OURS = ("history-*.png", "compare.png", "split-*.png", "confusion[-_]*.png", "errors[-_]*.png", "sweep-*.png")
"""Pictures that an earlier report may have left in the folder."""


@dataclass(frozen=True)
class Request:
    """The parts of a report."""

    runs: Sequence[Run]
    """The report is stored in the first one's folder; without runs, in the sweep's."""
    sweep: Path | None
    """Folder of a sweep whose analysis is included; required if there is no run."""
    project: Path
    """Folder of templates and code."""
    archives: Sequence[Path]
    """Folders that may hold the trainers that ran."""
    typed: Callable[[str], str] = str
    """Applied to a command before it is shown."""

    @property
    def subject(self) -> Path:
        """Folder of the run or sweep that the report is filed under."""
        if self.runs:
            return self.runs[0].folder
        assert self.sweep is not None
        return self.sweep

    @property
    def folder(self) -> Path:
        """Where the report goes."""
        return self.subject / "report"

    @property
    def names(self) -> list[str]:
        """The subjects of the report."""
        return [run.name for run in self.runs] or [f"sweep {self.subject.name}"]


def make(request: Request, into: Path) -> None:
    """Write all files of a report into an empty folder: pictures, both pages, the zip."""
    draw(request, into)
    trainers = archive.trainer_archives(request.runs, request.archives)
    report = compose(request, archive.sentences(request.runs, request.sweep, trainers))
    renderer = Renderer(request.project / "templates", request.typed)
    write_text(into / "README.md", renderer.readme(report))
    write_text(into / "index.html", renderer.page(report, into))
    entries = archive.entries(request.runs, request.sweep, into, request.project, trainers)
    archive.write(into / f"{request.subject.name}.zip", entries)


def draw(request: Request, into: Path) -> None:
    """Draw a report's pictures, and copy those drawn by other commands."""
    for run in request.runs:
        plots.history(run.history, into / _file("history", run), run.monitor)
        if phases := trained.step_medians(run):
            plots.split(phases, into / _file("split", run))
        for key, drawn in mistakes.drawn(run).items():
            shutil.copyfile(drawn, into / _file(key, run))
    if len(request.runs) > 1 and (decides := comparison.measure(request.runs)):
        plots.compare({run.name: run.history for run in request.runs}, into / "compare.png", decides)
    for picture in sweeps.pictures(request.sweep) if request.sweep else []:
        shutil.copyfile(picture, into / sweeps.copied(picture))


def compose(request: Request, packed: Sequence[str]) -> Report:
    """Title, summary and sections.

    Args:
        request: the parts.
        packed: sentences on the zip.
    """
    runs, several = request.runs, len(request.runs) > 1
    sections = [comparison.section(runs, "compare.png")] if several else []
    for run in runs:
        sections += [Section(f"Run {code(run.name)}")] if several else []
        sections += _of_run(run, 3 if several else 2)
    sections += [sweeps.section(request.sweep)] if request.sweep else []
    sections += [Section(f"What is in {code(f'{request.subject.name}.zip')}", [Items(packed)])]
    return Report(f"Report: {listed([code(name) for name in request.names])}", _short(request), sections)


def _of_run(run: Run, level: int) -> list[Section]:
    wrong = mistakes.blocks(run, {key: _file(key, run) for key in mistakes.drawn(run)})
    return [
        *trained.sections(run, level),
        *(accuracy if run.classifies else metrics).sections(run, level, _file("history", run), wrong),
        *trained.steps(run, level, _file("split", run)),
        trained.configuration(run, level),
    ]


def _short(request: Request) -> list[str]:
    runs = request.runs
    if request.sweep and not runs:
        return sweeps.short(request.sweep)
    return [*map(trained.short, runs), *(accuracy.short(runs[0]) if len(runs) == 1 and runs[0].classifies else [])]


def _file(kind: str, run: Run) -> str:
    """Name of a run's picture beside the report; with no `-` in the kind, no two have the same."""
    return f"{kind}-{run.name}.png"


def changes(fresh: Path, folder: Path, stale: Sequence[str] = ()) -> list[str]:
    """Names of files in `fresh` that differ from those in `folder`, and of old files there that match a pattern of `stale`."""
    names = [path.name for path in fresh.iterdir()]
    changed = [name for name in names if not (folder / name).is_file() or not filecmp.cmp(fresh / name, folder / name, shallow=False)]
    return sorted([*changed, *(path.name for one in stale for path in folder.glob(one) if path.name not in names)])


def put_changed(fresh: Path, folder: Path, stale: Sequence[str] = ()) -> list[str]:
    """Make these changes, each file whole; returns their names."""
    changed = changes(fresh, folder, stale)
    # The zip comes last: once it exists, the pages that it holds exist, too.
    for name in sorted(changed, key=lambda name: (name.endswith(".zip"), name)):
        if (fresh / name).is_file():
            with replacing(folder / name) as part:
                shutil.copyfile(fresh / name, part)
        else:
            (folder / name).unlink()
    return changed
