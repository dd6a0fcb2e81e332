"""Commands that a user may want after a run, or while it goes on."""

from collections.abc import Sequence
from typing import Any

from control.common.text import next_commands
from control.runs.results import course
from control.runs.results.summary import Summary
from trainer.common.errors import DIVERGED
from trainer.rundir.schemas import VALIDATION


def after_run(run: str, summary: Summary, rows: Sequence[dict[str, Any]] = ()) -> list[tuple[str, str]]:
    """Commands that a user may want after a run; training longer only if it is not advised against."""
    commands, failed = [], summary.failure
    # The same steps would diverge again.
    if summary.unfinished and not (failed and (failed.again or failed.exit_code == DIVERGED)):
        commands.append(go_on(run, summary))
    if summary.state == "FAILED" and failed and (option := failed.without_onednn):
        commands.append(("continue without oneDNN", f"{go_on(run, summary)[1]} -e {option}"))
    if summary.best:
        # A model without validation has no loss, so there is nothing to evaluate either.
        if not rows or any(name.startswith(VALIDATION) for name in rows[-1]):
            commands.append(("metrics on the test examples", f"ansible-playbook evaluate.yml -e run={run} -e epoch=first,best,last"))
        commands.append(("curves", "ansible-playbook tensorboard.yml"))
    over = summary.ended_early or summary.script or (rows and course.judge(rows).trend is course.Trend.OVERFITS)
    if summary.state == "SUCCEEDED" and not over:
        commands.append(go_on(run, summary))
    if summary.state == "FAILED" and summary.started_by == "train.yml":
        commands.append(("all logs", f"ansible-playbook logs.yml -e run={run}"))
    return commands


def go_on(run: str, summary: Summary, epochs: int | None = None) -> tuple[str, str]:
    """Suggestion of more epochs for a run, with its command; no command while the run trains.

    Args:
        run: the run's name.
        summary: the run's end.
        epochs: finished epochs; None: as many as requested.
    """
    command = f"ansible-playbook {summary.started_by} -e run={run}"
    if summary.unfinished:
        return "start it again" if summary.script else "continue where it stopped", command
    if summary.state != "SUCCEEDED":
        return "it is still training, or nobody watched its end", ""
    twice = f"set=train.steps={(summary.steps or 0) * 2}" if summary.in_steps else f"epochs={(epochs or summary.epochs or 1) * 2}"
    return "train longer", f"{command} -e {twice}"


def under_way(run: str) -> str:
    """Commands while a run goes on without this terminal."""
    return next_commands(
        [
            ("watch", f"ansible-playbook train.yml -e run={run}"),
            ("look", f"ansible-playbook status.yml -e run={run}"),
            ("stop", f"ansible-playbook stop.yml -e run={run}"),
        ]
    )
