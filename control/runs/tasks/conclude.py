"""Conclude a run, watched or stopped: write its summary, show the result, fail with the root cause."""

import dataclasses
import time
from pathlib import Path
from typing import Any

from control.common import command_line, configurations, project, text
from control.common.operator_variables import boolean
from control.common.task import Task
from control.runs.hosts import host_roles, run_recovery
from control.runs.launch import launches, under_way, waiting_runs
from control.runs.planning import kept_choices
from control.runs.results import evaluations, expected_speed, failure_text, hparams, mlflow_log, next_steps, outcome, run_summary
from control.runs.results.outcome import Verdict
from control.runs.show import run_result
from trainer.common.files import write_json
from trainer.rundir.launch_record import LaunchRecord, host_facts


def conclude(task: Task) -> dict[str, Any]:
    """Runs once, on the control node, with every host's verdict."""
    plan = task.plan
    name, folder = plan.run, plan.folder
    if project.is_users(folder):
        task.warn([under_way.restore(name)])
    returned = run_summary.judged(folder, [Verdict(**one) for one in task.arguments["verdicts"]])
    record = LaunchRecord.read(folder)
    verdicts = _with_launch(record, returned)
    if all(verdict.state == "unreachable" for verdict in verdicts):
        message = (
            f"{name}: no host can be reached from here: {verdicts[0].message}. Training may well go on.\n\n{next_steps.under_way(name)}"
        )
        return {"failed": True, "msg": message}
    summary = run_summary.concluded(folder, verdicts)
    launches.end_all(folder)
    scripted = "script" in summary
    if not scripted:
        kept_choices.keep_all(folder)
    if summary["state"] == "RUNNING":
        # The commands are shown here, and not again when the command ends.
        return {"run_under_way": None, "show_last": f"{name} {waiting_runs.progress(verdicts)}\n{next_steps.under_way(name)}"}
    if not scripted:
        summary |= _end_to_end(folder, verdicts) if project.is_trial(folder) else _forecast(folder, summary)
    summary["launch"] = outcome.launch_times(
        record.entered_at, verdicts, time.time() if record.entered_at == command_line.entered() else None
    )
    write_json(folder / "summary.json", summary)
    under_way.forget(folder)
    if not scripted and project.is_users(folder):
        task.warn(evaluations.take(folder, host_roles.evaluators(LaunchRecord.read(folder).hosts)))
        task.warn([mlflow_log.log(folder, configurations.value_at(configurations.load(folder / "config.yml"), "telemetry.mlflow"))])
    follows = summary["state"] == "SUCCEEDED" and boolean("evaluate", task.arguments.get("evaluates", False))
    shown = run_result.shown_result(folder, summary, commands=not follows, printed=task.arguments.get("printed", ()))
    if plan.run_kind == "doctor":
        over = {"launch_begun": None}
        return over if summary["state"] == "SUCCEEDED" else {**over, "failed": True, "msg": _trial(folder, summary, verdicts)}
    task.warn(hparams.write_all([folder])[1])
    trouble = _trouble(name, summary, verdicts)
    if project.is_trial(folder):
        return {"failed": True, "msg": trouble} if trouble else {}
    if trouble:
        return {"run_under_way": None, "failed": True, "msg": f"{trouble}\n\n{shown}"}
    facts = {
        "plan": dataclasses.replace(plan, complete=True).fact,
        "cluster": host_facts(run_summary.remaining(folder, record.hosts)),
    }
    return {"run_under_way": None, "show_last": shown, "ansible_facts": facts}


def _with_launch(record: LaunchRecord, verdicts: list[Verdict]) -> list[Verdict]:
    """The verdicts. The one to blame also has its worker's environment variables, and whether the previous launch ended the same way."""
    cause = outcome.root_cause(verdicts)
    if cause is None:
        return verdicts
    environments = {host.name: host.environment for host in record.hosts}
    # Slurm may have taken hosts that are not in the inventory; its script has the first host's variables.
    environment = environments.get(cause.host, next(iter(environments.values()), {}))
    again = outcome.crashed_again(cause, record.failed_before)
    return [dataclasses.replace(verdict, environment=environment, again=again) if verdict is cause else verdict for verdict in verdicts]


def _trouble(name: str, summary: dict[str, Any], verdicts: list[Verdict]) -> str:
    """Reason why a run did not finish, root cause first; empty if the run finished."""
    if failure := failure_text.failure(verdicts):
        return failure
    return "" if summary["state"] == "SUCCEEDED" else f"{name} was stopped before its end: {summary['state']}"


def _trial(folder: Path, summary: dict[str, Any], verdicts: list[Verdict]) -> str:
    """Message for the doctor's failed trial: not a user's run, so nothing to resume."""
    trouble = _trouble("the trial", summary, verdicts)
    again = "fix that, then run it again: ansible-playbook doctor.yml"
    return f"[FAIL] training: the trial failed\n{trouble}\n\nlogs: {project.relative(folder)}; {again}"


def _forecast(folder: Path, summary: dict[str, Any]) -> dict[str, float]:
    """The doctor's prediction for this run, if any."""
    config = configurations.load(folder / "config.yml")
    expected = expected_speed.expected(config, LaunchRecord.read(folder), summary.get("shares"))
    return {"predicted_images_per_s": expected} if expected is not None else {}


def _end_to_end(folder: Path, verdicts: list[Verdict]) -> dict[str, float]:
    """Seconds from the launch to the end of the last worker, both by this machine's clock."""
    return {"seconds_end_to_end": round(max(verdict.at for verdict in verdicts) - LaunchRecord.read(folder).launched_at, 3)}


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
    task.warn([under_way.restore(name)])
    if len(away) == len(verdicts):
        return {"failed": True, "msg": f"{name}: nothing was stopped. {_away(name, folder, away)}"}
    launches.end_all(folder)
    summary = run_summary.read_summary(folder)
    if stopped or summary["state"] in (None, "RUNNING"):
        summary = run_summary.concluded(folder, verdicts, cancelled=stopped > 0)
        write_json(folder / "summary.json", summary)
    if not away:
        under_way.forget(folder)
    task.warn(evaluations.take(folder, host_roles.evaluators(LaunchRecord.read(folder).hosts)))
    shown = run_result.shown_result(folder, summary)
    if away:
        return {"failed": True, "msg": f"{_away(name, folder, away)}\n\n{shown}"}
    if stopped and summary["state"] == "FAILED":
        return {"failed": True, "msg": f"{failure_text.failure(verdicts)}\n\n{shown}"}
    return {"show_last": shown if stopped else f"{name} was not running.\n{shown}"}


def _verdict(rank: int, host: str, asked: dict[str, Any], watched: dict[str, Any]) -> Verdict:
    if asked.get("unreachable"):
        return Verdict(host, rank, "unreachable", message=str(asked.get("msg", "")).strip())
    if "verdict" not in watched:
        return Verdict(host, rank, "unclear", message=str(asked.get("msg", "it could not be stopped")).strip())
    return Verdict(**watched["verdict"])


def _away(run: str, folder: Path, hosts: list[str]) -> str:
    """Consequences of hosts that could not be reached, and the fix."""
    one = len(hosts) == 1
    whose, them, wait = "its" if one else "their", "it" if one else "them", run_recovery.rejoin_wait(folder)
    alone = (
        f"{whose} supervisor{'' if one else 's'} wait{'s' if one else ''} for the others, {wait:g} s at most (recovery.rejoin_wait); a "
        "queued run keeps its place there until it is stopped there, too"
    )
    return (
        f"{text.listed(hosts)} can't be reached: {whose} worker{'' if one else 's'} could not be stopped. Without the others "
        f"{alone if wait else 'no worker goes on'}. Fix: once {'it is' if one else 'they are'} back, look at {them}: "
        f"ansible-playbook stop.yml -e run={run}"
    )
