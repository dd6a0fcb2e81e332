"""The report of a run, or of several compared: README.md, index.html, pictures and one zip, from the runs' files.

Every sentence with a figure comes from a file; where one is missing, the sentence says which, and the command that makes it.
The same files give the same report, byte for byte.
"""

import filecmp
import fnmatch
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.analysis import plots
from trainer.analysis.reports import accuracy, archive, comparison, steps, sweeps, trained
from trainer.analysis.reports.blocks import Items, Section
from trainer.analysis.reports.facts import Run
from trainer.analysis.reports.render import Renderer, Report
from trainer.analysis.reports.words import code
from trainer.analysis.text import listed
from trainer.files import replacing, write_text

PAGES = ("README.md", "index.html")
OURS = ("history-*.png", "compare.png", "split-*.png", "confusion-*.png", "sweep-*.png")
"""Pictures that an earlier report may have left in the folder."""


@dataclass(frozen=True)
class Request:
    """What a report is made of."""

    runs: Sequence[Run]
    """At least one; the report lies in the folder of the first."""
    sweep: Path | None
    """Folder of a sweep whose analysis belongs to it."""
    project: Path
    """Folder of templates and code."""
    archives: Sequence[Path]
    """Folders in which the trainers that ran may lie."""
    typed: Callable[[str], str] = str
    """What to do with a command before it is shown."""

    @property
    def folder(self) -> Path:
        """Where the report goes."""
        return self.runs[0].folder / "report"


def make(request: Request, into: Path) -> None:
    """Write all files of a report into an empty folder: pictures, both pages, the zip."""
    draw(request, into)
    trainers = archive.trainer_archives(request.runs, request.archives)
    report = compose(request, archive.sentences(request.runs, request.sweep, trainers))
    renderer = Renderer(request.project / "templates", request.typed)
    write_text(into / "README.md", renderer.readme(report))
    write_text(into / "index.html", renderer.page(report, into))
    entries = archive.entries(request.runs, request.sweep, into, request.project, trainers)
    archive.write(into / f"{request.runs[0].name}.zip", entries)


def draw(request: Request, into: Path) -> None:
    """Draw a report's pictures, and copy those that other commands have drawn."""
    for run in request.runs:
        plots.history(run.history, into / _curves(run), run.best["epoch"])
        if phases := steps.medians(run):
            plots.split(phases, into / _split(run))
        if (drawn := _confusion_file(run)).is_file():
            shutil.copyfile(drawn, into / _confusion(run))
    if len(request.runs) > 1:
        plots.compare({run.name: run.history for run in request.runs}, into / "compare.png")
    for picture in sweeps.pictures(request.sweep) if request.sweep else []:
        shutil.copyfile(picture, into / sweeps.copied(picture.parent, picture))


def compose(request: Request, packed: Sequence[str]) -> Report:
    """Title, summary and sections.

    Args:
        request: what it is made of.
        packed: sentences on the zip.
    """
    runs, several = request.runs, len(request.runs) > 1
    sections = [comparison.section(runs, "compare.png")] if several else []
    for run in runs:
        sections += [Section(f"Run {code(run.name)}")] if several else []
        sections += _of_run(run, 3 if several else 2)
    sections += [sweeps.section(request.sweep)] if request.sweep else []
    sections += [Section(f"What is in {code(f'{runs[0].name}.zip')}", [Items(packed)])]
    return Report(f"Report: {listed([code(run.name) for run in runs])}", _short(runs), sections)


def _of_run(run: Run, level: int) -> list[Section]:
    confusion = _confusion(run) if _confusion_file(run).is_file() else None
    return [
        *trained.sections(run, level),
        *accuracy.sections(run, level, _curves(run), confusion),
        *steps.sections(run, level, _split(run)),
        trained.configuration(run, level),
    ]


def _short(runs: Sequence[Run]) -> list[str]:
    if len(runs) > 1:
        return [trained.short(run) for run in runs]
    return [trained.short(runs[0]), *accuracy.short(runs[0])]


def _curves(run: Run) -> str:
    return f"history-{run.name}.png"


def _split(run: Run) -> str:
    return f"split-{run.name}.png"


def _confusion(run: Run) -> str:
    return f"confusion-{run.name}.png"


def _confusion_file(run: Run) -> Path:
    """Where evaluate.yml puts the best epoch's picture."""
    return run.folder / "evaluations" / f"confusion-epoch-{run.best['epoch']:04d}.png"


def changes(made: Path, folder: Path) -> list[str]:
    """Names of what differs between a report that was just made and the one in a folder; what is too many there counts."""
    names = [path.name for path in made.iterdir()]
    new = [name for name in names if not (folder / name).is_file() or not filecmp.cmp(made / name, folder / name, shallow=False)]
    old = [path.name for path in folder.glob("*.png") if path.name not in names and any(fnmatch.fnmatch(path.name, one) for one in OURS)]
    return sorted([*new, *old])


def place(made: Path, folder: Path) -> list[str]:
    """Put a report that was just made into its folder, each file whole; gives the names of what changed."""
    changed = changes(made, folder)
    # The zip comes last: whoever finds it finds the pages that it holds.
    for name in sorted(changed, key=lambda name: (name.endswith(".zip"), name)):
        if (made / name).is_file():
            with replacing(folder / name) as part:
                shutil.copyfile(made / name, part)
        else:
            (folder / name).unlink()
    return changed
