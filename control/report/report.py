"""The report of one run, or of several in comparison: README.md, index.html, pictures and one zip, from the runs' files.

Every sentence with a figure comes from a file; if one is missing, the sentence names it and the command that makes it. The
same files give the same report, byte for byte.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from control.common import plotting
from control.common.text import listed
from control.report import epochs, mistakes, repeating, trained
from control.report.archive import Parts, write_zip
from control.report.blocks import Section, code, plain
from control.report.comparison import Comparison
from control.report.facts import Run
from control.report.page import Renderer, Report, dark
from control.report.sweeps import SweepAnalysis
from control.runs.results import run_plots
from trainer.common.files import write_text
from trainer.config.schema import Report as Heading

COMPARED = "pictures/compare.png"
_PICTURES = ("history-*.png", "compare*.png", "split-*.png", "confusion[-_]*.png", "errors[-_]*.png", "sweep-*.png")
OURS = (*_PICTURES, *(f"pictures/{name}" for name in _PICTURES), "misclassified/*/[0-9]*.png", "misclassified/*/confusion_*.png")
"""Pictures that an earlier report may have left in the folder, perhaps beside its pages."""


@dataclass(frozen=True)
class Request:
    """The parts of a report."""

    runs: Sequence[Run]
    """The runs; the report is stored in the first one's folder or, without runs, in the sweep's."""
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
        """Folder of the run or sweep to which the report belongs."""
        if self.runs:
            return self.runs[0].folder
        assert self.sweep is not None
        return self.sweep

    @property
    def folder(self) -> Path:
        """Folder of the report."""
        return self.subject / "report"

    @property
    def names(self) -> list[str]:
        """The subjects of the report."""
        return [run.name for run in self.runs] or [f"sweep {self.subject.name}"]

    def make(self, into: Path) -> None:
        """Write all files of the report into an empty folder: pictures, both pages, the zip."""
        self._draw(into)
        parts = Parts.gather(self.subject.name, self.runs, self.sweep, self.project, self.archives)
        report = self._compose(parts, into)
        renderer = Renderer(self.project / "templates", self.typed)
        write_text(into / "README.md", renderer.readme(report))
        write_text(into / "index.html", renderer.page(report, into))
        write_zip(into / f"{parts.subject}.zip", parts.entries(into))

    def _draw(self, into: Path) -> None:
        """Draw the pictures, and copy those that other commands have drawn."""
        (into / "pictures").mkdir()
        for run in self.runs:
            run_plots.history(run.history, into / run.picture("history"), run.monitor)
            if phases := run.step_medians:
                run_plots.split(phases, into / run.picture("split"))
            mistakes.draw(run, into)
        if len(self.runs) > 1 and (decides := Comparison(self.runs).decides):
            run_plots.compare({run.name: run.history for run in self.runs}, into / COMPARED, decides)
        for name, picture in SweepAnalysis(self.sweep).pictures.items() if self.sweep else ():
            shutil.copyfile(picture, into / name)
        for picture in sorted((into / "pictures").iterdir()):
            plotting.darken(picture, into / dark(f"pictures/{picture.name}"))

    def _compose(self, parts: Parts, into: Path) -> Report:
        """Title, summary and sections; `into` has the pictures."""
        runs, several = self.runs, len(self.runs) > 1
        sections = [Comparison(runs).section(COMPARED)] if several else []
        for run in runs:
            sections += [Section(f"Run {code(run.name)}")] if several else []
            sections += [replace(one, level=3 if several else 2) for one in _of_run(run, parts)]
        sections += [SweepAnalysis(self.sweep).section] if self.sweep else []
        sections += [parts.section(into)]
        title = plain(self.heading.title or "") or f"Report: {listed([code(name) for name in self.names])}"
        return Report(title, plain(self.heading.author or ""), self._short(), sections)

    def _short(self) -> list[str]:
        runs = self.runs
        if self.sweep and not runs:
            return SweepAnalysis(self.sweep).short
        return [*map(trained.short, runs), *(epochs.short(runs[0]) if len(runs) == 1 and runs[0].classifies else [])]


def _of_run(run: Run, parts: Parts) -> list[Section]:
    own = parts.own[run.name]
    return [
        *trained.sections(run),
        *epochs.sections(run, mistakes.blocks(run)),
        *trained.steps(run),
        *trained.configuration(run, own),
        repeating.section(run, parts.subject, parts.address, own),
    ]
