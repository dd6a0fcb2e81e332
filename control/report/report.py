"""The report of a run, or of several compared: README.md, index.html, pictures and one zip, from the runs' files.

Every sentence with a figure comes from a file; if one is missing, the sentence names it and the command that makes it. The
same files give the same report, byte for byte.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from control.common import plotting
from control.common.text import listed
from control.report import accuracy, archive, comparison, metrics, mistakes, repeating, sweeps, trained
from control.report.blocks import Section, code, plain
from control.report.facts import Run
from control.report.page import Renderer, Report, dark
from control.runs.results import run_plots
from trainer.common.files import write_text
from trainer.config.schema import Report as Heading

COMPARED = "pictures/compare.png"
_PICTURES = ("history-*.png", "compare*.png", "split-*.png", "confusion[-_]*.png", "errors[-_]*.png", "sweep-*.png")
OURS = (*_PICTURES, *(f"pictures/{name}" for name in _PICTURES), "misclassified/*/[0-9]*.png", "misclassified/*/confusion_*.png")
"""Pictures that an earlier report, which may have had them beside its pages, may have left in the folder."""


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
    heading: Heading = field(default_factory=Heading)
    """Author and title at the top."""

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
    _draw(request, into)
    parts = archive.gather(request.subject.name, request.runs, request.sweep, request.project, request.archives)
    report = _compose(request, parts, into)
    renderer = Renderer(request.project / "templates", request.typed)
    write_text(into / "README.md", renderer.readme(report))
    write_text(into / "index.html", renderer.page(report, into))
    archive.write(into / f"{parts.subject}.zip", archive.entries(parts, into))


def _draw(request: Request, into: Path) -> None:
    """Draw a report's pictures, and copy those drawn by other commands."""
    (into / "pictures").mkdir()
    for run in request.runs:
        run_plots.history(run.history, into / _file("history", run), run.monitor)
        if phases := trained.step_medians(run):
            run_plots.split(phases, into / _file("split", run))
        for key, drawn in mistakes.drawn(run).items():
            shutil.copyfile(drawn, into / _file(key, run))
        for file, wrong in mistakes.pictures(run).items():
            (into / file).parent.mkdir(parents=True, exist_ok=True)
            mistakes.draw(wrong, into / file)
    if len(request.runs) > 1 and (decides := comparison.measure(request.runs)):
        run_plots.compare({run.name: run.history for run in request.runs}, into / COMPARED, decides)
    for picture in sweeps.pictures(request.sweep) if request.sweep else []:
        shutil.copyfile(picture, into / sweeps.copied(picture))
    for picture in sorted((into / "pictures").iterdir()):
        plotting.darken(picture, into / dark(f"pictures/{picture.name}"))


def _compose(request: Request, parts: archive.Parts, into: Path) -> Report:
    """Title, summary and sections; `into` has the pictures."""
    runs, several = request.runs, len(request.runs) > 1
    sections = [comparison.section(runs, COMPARED)] if several else []
    for run in runs:
        sections += [Section(f"Run {code(run.name)}")] if several else []
        sections += _of_run(run, 3 if several else 2, parts)
    sections += [sweeps.section(request.sweep)] if request.sweep else []
    sections += [archive.section(parts, into)]
    title = plain(request.heading.title or "") or f"Report: {listed([code(name) for name in request.names])}"
    return Report(title, plain(request.heading.author or ""), _short(request), sections)


def _of_run(run: Run, level: int, parts: archive.Parts) -> list[Section]:
    wrong = mistakes.blocks(run, {key: _file(key, run) for key in mistakes.drawn(run)})
    own, folder = parts.own[run.name], parts.code_folder(run)
    return [
        *trained.sections(run, level),
        *(accuracy if run.classifies else metrics).sections(run, level, _file("history", run), wrong),
        *trained.steps(run, level, _file("split", run)),
        *trained.configuration(run, level, own, folder),
        repeating.section(run, level, parts.subject, parts.address, own, folder),
    ]


def _short(request: Request) -> list[str]:
    runs = request.runs
    if request.sweep and not runs:
        return sweeps.short(request.sweep)
    return [*map(trained.short, runs), *(accuracy.short(runs[0]) if len(runs) == 1 and runs[0].classifies else [])]


def _file(kind: str, run: Run) -> str:
    """Name of a run's picture beside the report; with no `-` in the kind, no two have the same."""
    return f"pictures/{kind}-{run.name}.png"
