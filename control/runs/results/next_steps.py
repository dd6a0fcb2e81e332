"""Commands that a user may want after a run, or while it goes on."""

from collections.abc import Sequence
from typing import Any

from control.common.text import next_commands
from control.runs.results import course
from control.runs.results.failure_text import without_onednn
from trainer.common.errors import DIVERGED
from trainer.rundir.schemas import VALIDATION


def after_run(run: str, summary: dict[str, Any], rows: Sequence[dict[str, Any]] = ()) -> list[tuple[str, str]]:
    """Commands that a user may want after a run; training longer only if it is not advised against."""
    commands, failed = [], summary.get("failure") or {}
    # The same steps would diverge again.
    if summary["state"] in UNFINISHED and not failed.get("again") and failed.get("exit_code") != DIVERGED:
        commands.append(go_on(run, summary))
    if summary["state"] == "FAILED" and (option := without_onednn(failed.get("exit_code"), failed.get("environment"))):
        commands.append(("continue without oneDNN", f"{go_on(run, summary)[1]} -e {option}"))
    if summary.get("best"):
        # Without validation there is nothing to evaluate either: the model has no loss.
        if not rows or any(name.startswith(VALIDATION) for name in rows[-1]):
            commands.append(("metrics on the test examples", f"ansible-playbook evaluate.yml -e run={run} -e epoch=first,best,last"))
        commands.append(("curves", "ansible-playbook tensorboard.yml"))
    over = summary.get("ended_early") or "script" in summary or (rows and course.judge(rows).trend is course.Trend.OVERFITS)
    if summary["state"] == "SUCCEEDED" and not over:
        commands.append(go_on(run, summary))
    if summary["state"] == "FAILED" and "started_by" not in summary:
        commands.append(("all logs", f"ansible-playbook logs.yml -e run={run}"))
    return commands


UNFINISHED = ("CANCELLED", "PREEMPTED", "FAILED")


def go_on(run: str, summary: dict[str, Any], epochs: int | None = None) -> tuple[str, str]:
    """Step towards more epochs of a run, and its command; no command while the run trains.

    Args:
        run: its name.
        summary: content of summary.json.
        epochs: finished epochs, if the summary lacks them.
    """
    command = f"ansible-playbook {summary.get('started_by', 'train.yml')} -e run={run}"
    if summary.get("state") in UNFINISHED:
        return "start it again" if "script" in summary else "continue where it stopped", command
    if summary.get("state") != "SUCCEEDED":
        return "it is still training, or nobody watched its end", ""
    trained = summary["epochs"] if epochs is None else epochs
    return "train longer", f"{command} -e set=train.steps={summary['steps'] * 2}" if summary.get(
        "in_steps"
    ) else f"{command} -e epochs={trained * 2}"


def under_way(run: str) -> str:
    """Commands while a run goes on without this terminal."""
    return next_commands(
        [
            ("watch", f"ansible-playbook train.yml -e run={run}"),
            ("look", f"ansible-playbook status.yml -e run={run}"),
            ("stop", f"ansible-playbook stop.yml -e run={run}"),
        ]
    )
