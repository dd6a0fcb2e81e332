"""Copies of the records of runs under way, from which a run directory is restored if somebody deletes it while workers train."""

import shutil
from pathlib import Path

from control.common import project
from control.runs.results.run_folder import RunFolder
from control.runs.results.run_names import check_run_name
from trainer.rundir.launch_record import RECORD

COPIES = project.PRIVATE / "under_way"
"""Folder with one folder per run that was launched from here and whose end was not seen."""
FILES = ("config.yml", RECORD)
"""Copied files, in order: the second one marks a run as started, so it comes last."""


def keep(folder: Path) -> None:
    """Copy the records of a launch, except for a run that belongs to another command, such as a sweep."""
    if RunFolder(folder).is_users:
        _copy(folder, COPIES / folder.name)


def forget(folder: Path) -> None:
    """Drop the copy of a run that has ended, or never began."""
    if RunFolder(folder).is_users:
        shutil.rmtree(COPIES / folder.name, ignore_errors=True)


def has(run: str) -> bool:
    """Return whether a run was launched from here and its end was not seen."""
    return (COPIES / run / FILES[-1]).is_file()


def restore(run: str) -> str:
    """Restore `runs/RUN` if it is gone and the run's end was not seen; return a message for the user, empty if nothing was done.

    Raises:
        ConfigError: the name could leave its folder.
    """
    check_run_name(run)
    folder, copy = project.RUNS / run, COPIES / run
    if any((folder / name).exists() for name in FILES) or not has(run):
        return ""
    _copy(copy, folder)
    where = project.relative(folder)
    return f"{where} was deleted, though nobody has seen the run's end: its record is restored, and results follow from its hosts"


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(source / name, target / f".part-{name}")
        (target / f".part-{name}").replace(target / name)
