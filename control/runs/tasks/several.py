"""Run a separate command for each of several runs."""

from collections.abc import Callable, Sequence
from typing import Any

from control.common import command_line, project
from control.common.child_playbooks import Interrupted, Playbook, heeding_signals, last_lines
from control.common.progress_line import Line


def each(typed: str, command: str, names: Sequence[str], doing: str) -> list[str]:
    """Run a command for each run, with the inventory variables of the `typed` command and the progress text `doing`; return failures."""
    line, failed = Line(), list[str]()
    with heeding_signals() as ended:
        for number, name in enumerate(names, 1):
            line.update(f"{doing} {name} ({number} of {len(names)})")
            failed += _one(command, {**command_line.inventory_overrides(typed), "run": name}, ended)
    line.end()
    return failed


def _one(command: str, variables: dict[str, Any], ended: Callable[[], bool]) -> list[str]:
    log = project.PRIVATE / f"{command.rpartition('/')[2]}.log"
    log.unlink(missing_ok=True)
    try:
        code = Playbook(f"{command}.yml", variables, log).run(ended)
    except Interrupted:
        return [f"{variables['run']}: interrupted"]
    return ["\n  ".join([f"{variables['run']}:", *last_lines(log, 3)])] if code else []
