"""Record and show how a run was stopped."""

from pathlib import Path
from typing import Any

from control import project, text
from control.runs import asynchronous, evaluations, launches, run_results, supervision
from control.runs.outcome import Verdict
from control.task import Task
from trainer.files import write_json
from trainer.rundir import recorded


def conclude_stop(task: Task) -> dict[str, Any]:
    """A run that did not have to be stopped keeps its state; a host that was away is named.

    Runs once, on the control node, with what each host's tasks returned, by rank.
    """
    name, asked = task.arguments["run"], task.arguments["stopped"]
    stopped = sum(bool(one.get("changed")) for one in asked)
    watched = zip(task.arguments["hosts"], asked, task.arguments["watched"], strict=True)
    verdicts = [_verdict(rank, *one) for rank, one in enumerate(watched)]
    away = [verdict.host for verdict in verdicts if verdict.state == "unreachable"]
    folder = project.RUNS / name
    if len(away) == len(verdicts):
        return {"failed": True, "msg": f"{name}: nothing was stopped. {_away(name, folder, away)}"}
    launches.end_all(folder)
    summary = run_results.read_summary(folder)
    if stopped or summary["state"] in (None, "RUNNING"):
        summary = run_results.concluded(folder, verdicts, cancelled=stopped > 0)
        write_json(folder / "summary.json", summary)
    task.warn(evaluations.take(folder, asynchronous.evaluators(recorded(folder))))
    shown = run_results.shown_result(folder, summary)
    if away:
        return {"failed": True, "msg": f"{_away(name, folder, away)}\n\n{shown}"}
    if stopped and summary["state"] == "FAILED":
        return {"failed": True, "msg": f"{text.failure(verdicts)}\n\n{shown}"}
    return {"show_last": shown if stopped else f"{name} was not running.\n{shown}"}


def _verdict(rank: int, host: str, asked: dict[str, Any], watched: dict[str, Any]) -> Verdict:
    if asked.get("unreachable"):
        return Verdict(host, rank, "unreachable", message=str(asked.get("msg", "")).strip())
    if "verdict" not in watched:
        return Verdict(host, rank, "unclear", message=str(asked.get("msg", "it could not be stopped")).strip())
    return Verdict(**watched["verdict"])


def _away(run: str, folder: Path, hosts: list[str]) -> str:
    """What is to be known of hosts that could not be reached, and done."""
    one = len(hosts) == 1
    whose, them, wait = "its" if one else "their", "it" if one else "them", supervision.rejoin_wait(folder)
    alone = (
        f"{whose} supervisor{'' if one else 's'} wait{'s' if one else ''} for the others, {wait:g} s at most (recovery.rejoin_wait); a "
        "queued run keeps its place there until it is stopped there, too"
    )
    return (
        f"{text.listed(hosts)} can't be reached: {whose} worker{'' if one else 's'} could not be stopped. Without the others "
        f"{alone if wait else 'no worker goes on'}. Fix: once {'it is' if one else 'they are'} back, look at {them}: "
        f"ansible-playbook stop.yml -e run={run}"
    )
