"""Clean up after a command that ends during a launch: no worker waits for others that never started."""

import time
from pathlib import Path
from typing import Any

from control import command_line, project, text
from control.children import Interrupted, Playbook, last_lines
from control.runs import launches

PATIENCE_S = 90.0
LOG = project.PRIVATE / "take_back.log"


def take_back(launch: dict[str, Any]) -> str:
    """Stop what was started on all hosts of a launch, with a playbook; returns the resulting state."""
    LOG.unlink(missing_ok=True)
    variables = {**command_line.extra_variables(), "broken_launches": [launch | {"given_up": True}]}
    deadline = time.monotonic() + PATIENCE_S
    try:
        code = Playbook("playbooks/stages/take_back.yml", variables, LOG).run(lambda: time.monotonic() > deadline)
    except Interrupted:
        code = -1
    complete = code == 0 and not launches.is_noted(launch)
    return "\n".join([_taken_back() if complete else _not_all_taken_back(), *_next(launch, complete)])


def _taken_back() -> str:
    return "The launch was taken back: none of its workers is running."


def _not_all_taken_back() -> str:
    lines = "\n".join(f"  {line}" for line in last_lines(LOG, 5))
    return f"Not all of the launch could be taken back; the next train.yml tries again:\n{lines}"


def _next(launch: dict[str, Any], complete: bool) -> list[str]:
    if not project.is_users(Path(launch["folder"])):
        return []
    run = launch["run"]
    again, stop = ("start it", f"ansible-playbook train.yml -e run={run}"), ("stop it", f"ansible-playbook stop.yml -e run={run}")
    return [text.next_commands([again] if complete else [again, stop])]
