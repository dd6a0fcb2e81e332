"""Find the run of a command: the requested one, or the latest."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from control.common import command_line, project
from control.common.operator_variables import boolean
from control.common.plan import Plan
from control.common.task import Task
from control.runs.launch import launches, reservations, under_way
from control.runs.planning import script_plan
from control.runs.results import next_steps
from control.runs.results.run_folder import RunFolder
from control.runs.results.run_names import latest_run
from control.runs.show import parameter_server_text, status
from control.runs.tasks import deletion, elsewhere
from trainer.common.errors import LockstepError
from trainer.rundir.launch_record import LaunchRecord

ELSEWHERE = "elsewhere"
"""The stage in `playbooks/stages/` about runs without a record on this machine."""


def find(task: Task) -> dict[str, Any]:
    """Check the operator variables and find the run.

    Returns the facts `plan` (run, run_kind, folder, dataset, code, counts as recorded), `cluster` and `run_options`.
    """
    options = command_line.operator_options(task.arguments["command"], task.task_vars)
    if task.arguments.get("asked") and "run" not in options:
        raise LockstepError(f"run: missing; say which with -e run=NAME: {', '.join(project.runs()) or 'there is none'}")
    if "run" in options:
        asked = str(options["run"])
        if task.arguments["command"] == "playbooks/delete_run" and deletion.names_several(asked):
            confirmed = boolean("confirm", options.get("confirm", False)) and not task.check_mode
            # The following stages, which need a host, have nothing to do.
            facts = {
                "plan": Plan(run="", folder=project.RUNS, elsewhere="done"),
                "cluster": [{"name": task.task_vars["groups"]["workers"][0]}],
            }
            return {**deletion.delete(asked, confirmed), "ansible_facts": facts}
        task.warn([under_way.restore(asked)])
        if task.arguments["command"] in elsewhere.COMMANDS and not (project.RUNS / asked / "config.yml").is_file():
            reservations.refuse(asked)
            return _elsewhere(task, asked)
    folder = latest_run(project.RUNS, None if options.get("run") is None else str(options["run"]))
    if task.arguments["command"] in ("stop", "playbooks/delete_run"):
        reservations.refuse(folder.name)
    # A run that was planned but never started has no hosts.
    new = task.arguments.get("asked") and not LaunchRecord.read(folder)
    record = LaunchRecord() if new else _recorded(folder, task.task_vars["groups"]["all"])
    if "follow" in options:
        options["follow"] = boolean("follow", options["follow"])
    after = task.arguments["command"] in ("evaluate", "predict")
    if after:
        _refuse_without_weights(folder, task.arguments["command"], options)
    if "job" in record.slurm:
        _refuse_jobs(folder, task.arguments["command"], record)
    known = {key: getattr(record, key) for key in ("dataset", "code", "code_sha256", "counts", "script", "slurm")}
    plan = Plan(run=folder.name, folder=folder, **known)
    hosts = RunFolder(folder).remaining(record.hosts) if after else record.posts
    left = {"if_interrupted": f"Only its logs are no longer shown.\n{next_steps.under_way(folder.name)}"} if options.get("follow") else {}
    if task.arguments["command"] == "logs":
        plan = replace(plan, logs=parameter_server_text.logs(hosts, options.get("role")))
    facts = {"plan": plan, "cluster": hosts, "run_options": options, "published": {}, "left_out": [ELSEWHERE]}
    return {**left, "ansible_facts": facts}


def _elsewhere(task: Task, run: str) -> dict[str, Any]:
    """Facts on a run without a record on this machine; it may be on any host."""
    plan = Plan(run=run, folder=project.RUNS / run, elsewhere=task.arguments["command"])
    hosts = [{"name": name} for name in task.task_vars["groups"]["workers"]]
    return {"ansible_facts": {"plan": plan, "cluster": hosts, "run_options": {}}}


def _refuse_without_weights(run: Path, command: str, options: dict[str, Any]) -> None:
    """Refuse runs without a model and epochs without a snapshot, before any host is touched."""
    script_plan.refuse(run, f"{command}.yml")
    if command == "evaluate" and "image" not in options:
        RunFolder(run).choose_epochs(options.get("epoch", "last"))


def _refuse_jobs(run: Path, command: str, record: LaunchRecord) -> None:
    """Refuse commands on Slurm's jobs, which only Slurm can stop and inspect."""
    under_way = bool(launches.uncollected_job(record)) or RunFolder(run).summary.under_way
    if command in ("stop", "logs") or (command == "status" and under_way):
        number = record.slurm["job"]
        refusal = (
            f"run={run.name} is job {number} of Slurm. Look: squeue --job {number}; logs: {record.slurm['folder']}; watch it: "
            f"ansible-playbook playbooks/slurm.yml -e run={run.name}; stop it, keeping its state: scancel --signal=TERM {number}"
        )
        rest = status.all_runs() if command == "status" else ""
        raise LockstepError("\n\n".join(part for part in (refusal, rest) if part))


def _recorded(folder: Path, inventory_names: list[str]) -> LaunchRecord:
    record = LaunchRecord.read(folder)
    if not record:
        reservations.refuse(folder.name)
        raise LockstepError(
            f"run={folder.name}: it never started (no cluster.json); start it: ansible-playbook train.yml -e run={folder.name}"
        )
    missing = [host.name for host in record.posts if host.name not in inventory_names]
    if missing:
        raise LockstepError(f"run={folder.name}: its hosts {', '.join(missing)} are not in this inventory; choose the run's own with -i")
    return record
