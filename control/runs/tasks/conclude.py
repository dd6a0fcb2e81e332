"""Conclude a run, watched or stopped: write its summary, show the result, fail with the root cause."""

import dataclasses
import time
from typing import Any

from control.common import command_line, configurations, project, text
from control.common.operator_variables import boolean
from control.common.task import Task
from control.runs.launch import launches, recent_check, under_way, waiting_runs
from control.runs.planning import kept_choices
from control.runs.results import evaluations, expected_speed, hparams, mlflow_log, next_steps
from control.runs.results.outcome import Verdict, Verdicts
from control.runs.results.run_folder import RunFolder
from control.runs.results.summary import Summary
from control.runs.show.result_text import shown_result
from control.runs.show.timeline_text import show_timeline
from trainer.rundir.launch_record import LaunchRecord


def conclude(task: Task) -> dict[str, Any]:
    """Conclude a run; called once, on the control node, with every host's verdict."""
    plan, run = task.plan, RunFolder(task.plan.folder)
    name = plan.run
    if run.is_users:
        task.warn([under_way.restore(name)])
    record = run.record
    verdicts = _with_launch(record, run.judged(Verdict(**one) for one in task.arguments["verdicts"]))
    if all(verdict.state == "unreachable" for verdict in verdicts):
        message = (
            f"{name}: no host can be reached from here: {verdicts[0].message}. Training may well go on.\n\n{next_steps.under_way(name)}"
        )
        return {"failed": True, "msg": message}
    summary = run.concluded(verdicts)
    launches.end_all(run.path)
    if not summary.script:
        kept_choices.keep_all(run.path)
    if summary.state == "RUNNING":
        # The next commands are shown here, and not again when the playbook ends.
        return {"run_under_way": None, "show_last": f"{name} {waiting_runs.progress(verdicts)}\n{next_steps.under_way(name)}"}
    if not summary.script:
        summary = summary.changed(**(_end_to_end(run, verdicts) if run.is_trial else _forecast(run, summary)))
    launched_here = record.entered_at == command_line.entered()
    stages = command_line.stages() if launched_here else []
    summary = summary.changed(launch=verdicts.launch_times(record.entered_at, time.time() if launched_here else None, stages))
    summary.write(run.path)
    under_way.forget(run.path)
    recent_check.keep_if(not verdicts.failure_text)
    if run.is_users and not summary.script:
        task.warn(evaluations.take(run))
        task.warn([mlflow_log.log(run, configurations.value_at(run.config, "telemetry.mlflow"))])
    succeeded = summary.state == "SUCCEEDED"
    follows = succeeded and boolean("evaluate", task.arguments.get("evaluates", False))
    shown = shown_result(run, summary, commands=not follows, printed=task.arguments.get("printed", ()))
    shown = "\n".join([*_timeline(task, run, summary), shown])
    if plan.run_kind == "doctor":
        over = {"launch_begun": None}
        return over if succeeded else {**over, "failed": True, "msg": _trial(run, summary, verdicts)}
    task.warn(hparams.write_all([run])[1])
    trouble = _trouble(name, summary, verdicts)
    if run.is_trial:
        return {"failed": True, "msg": trouble} if trouble else {}
    if trouble:
        return {"run_under_way": None, "failed": True, "msg": f"{trouble}\n\n{shown}"}
    facts = {"plan": dataclasses.replace(plan, complete=True), "cluster": run.remaining(record.hosts)}
    return {"run_under_way": None, "show_last": shown, "ansible_facts": facts}


def _timeline(task: Task, run: RunFolder, summary: Summary) -> list[str]:
    """The timeline of a run that trained to its end, if it is asked for."""
    asked = boolean("timeline", task.arguments.get("timeline", False))
    return [show_timeline(run)] if asked and summary.state == "SUCCEEDED" and not summary.script else []


def _with_launch(record: LaunchRecord, verdicts: Verdicts) -> Verdicts:
    """The verdicts; the root cause also has its worker's environment variables, and whether the previous launch ended the same way."""
    cause = verdicts.root_cause
    if cause is None:
        return verdicts
    environments = {host.name: host.environment for host in record.hosts}
    # Slurm may have chosen hosts that are not in the inventory; its script has the first host's variables.
    environment = environments.get(cause.host, next(iter(environments.values()), {}))
    blamed = dataclasses.replace(cause, environment=environment, again=cause.crashed_again(record.failed_before))
    return Verdicts(blamed if verdict is cause else verdict for verdict in verdicts)


def _trouble(name: str, summary: Summary, verdicts: Verdicts) -> str:
    """Reason why a run did not finish, root cause first; empty if the run finished."""
    stopped = "" if summary.state == "SUCCEEDED" else f"{name} was stopped before its end: {summary.state}"
    return verdicts.failure_text or stopped


def _trial(run: RunFolder, summary: Summary, verdicts: Verdicts) -> str:
    """Message on the doctor's failed trial, which is not a user's run and can't be resumed."""
    trouble = _trouble("the trial", summary, verdicts)
    again = "fix that, then run it again: ansible-playbook doctor.yml"
    return f"[FAIL] training: the trial failed\n{trouble}\n\nlogs: {project.relative(run.path)}; {again}"


def _forecast(run: RunFolder, summary: Summary) -> dict[str, float]:
    """The doctor's prediction for this run, if any."""
    expected = expected_speed.expected(run.config, run.record, summary.shares)
    return {"predicted_images_per_s": expected} if expected is not None else {}


def _end_to_end(run: RunFolder, verdicts: Verdicts) -> dict[str, float]:
    """Seconds from the launch to the end of the last worker, both by this machine's clock."""
    return {"seconds_end_to_end": round(verdicts.ended_at - run.record.launched_at, 3)}


def conclude_stop(task: Task) -> dict[str, Any]:
    """Conclude a stopped run: one that had already ended keeps its state; a host that was away is named.

    Called once, on the control node, with the results of each host's tasks, by rank.
    """
    name, asked = task.arguments["run"], task.arguments["stopped"]
    stopped = sum(bool(one.get("changed")) for one in asked)
    watched = zip(task.arguments["hosts"], asked, strict=True)
    verdicts = Verdicts(_verdict(rank, *one, task.arguments["watched"]) for rank, one in enumerate(watched))
    away = [verdict.host for verdict in verdicts if verdict.state == "unreachable"]
    run = RunFolder(project.RUNS / name)
    task.warn([under_way.restore(name)])
    if len(away) == len(verdicts):
        return {"failed": True, "msg": f"{name}: nothing was stopped. {_away(run, away)}"}
    launches.end_all(run.path)
    summary = run.summary
    if stopped or summary.under_way:
        summary = run.concluded(verdicts, cancelled=stopped > 0)
        summary.write(run.path)
    if not away:
        under_way.forget(run.path)
    task.warn(evaluations.take(run))
    shown = shown_result(run, summary)
    if away:
        return {"failed": True, "msg": f"{_away(run, away)}\n\n{shown}"}
    if stopped and summary.state == "FAILED":
        return {"failed": True, "msg": f"{verdicts.failure_text}\n\n{shown}"}
    return {"show_last": shown if stopped else f"{name} was not running.\n{shown}"}


def _verdict(rank: int, host: str, asked: dict[str, Any], watched: dict[str, Any]) -> Verdict:
    if asked.get("unreachable"):
        return Verdict(host, rank, "unreachable", message=str(asked.get("msg", "")).strip())
    if host not in watched:
        return Verdict(host, rank, "unclear", message=str(asked.get("msg", "it could not be stopped")).strip())
    return Verdict(**watched[host])


def _away(run: RunFolder, hosts: list[str]) -> str:
    """Text on the consequences of hosts that could not be reached, and the fix."""
    one = len(hosts) == 1
    whose, them, wait = "its" if one else "their", "it" if one else "them", run.rejoin_wait
    alone = (
        f"{whose} supervisor{'' if one else 's'} wait{'s' if one else ''} for the others, {wait:g} s at most (recovery.rejoin_wait); a "
        "queued run keeps its place there until it is stopped there, too"
    )
    return (
        f"{text.listed(hosts)} can't be reached: {whose} worker{'' if one else 's'} could not be stopped. Without the others "
        f"{alone if wait else 'no worker goes on'}. Fix: once {'it is' if one else 'they are'} back, look at {them}: "
        f"ansible-playbook stop.yml -e run={run.name}"
    )
