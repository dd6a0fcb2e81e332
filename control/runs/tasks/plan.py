"""Make and show the plan of `train.yml`; touches no host."""

import functools
import re
import secrets
from dataclasses import replace
from typing import Any

from control.campaign.store import check_name
from control.common import command_line, text
from control.common.operator_variables import boolean, integer
from control.common.plan import Plan
from control.common.task import Task
from control.runs.hosts import run_recovery
from control.runs.launch import launches, preload, recent_check, reservations, under_way
from control.runs.planning import plan_command, script_plan
from control.runs.planning.plan_request import OperatorRequest
from control.runs.results import mlflow_log
from control.runs.results.run_folder import RunFolder
from control.runs.show.result_text import shown_result
from trainer.common.errors import ConfigError
from trainer.common.plain_values import from_plain, to_plain
from trainer.common.safe_text import printable
from trainer.rundir.launch_record import Host, LaunchRecord

BROKEN, SETTLE, PREFLIGHT, EVALUATE = "take_back", "settle", "preflight", "evaluate"
"""Stages, by their files in `playbooks/stages/`, that most launches leave out."""
LATER: dict[str, Any] = {
    "left_out": [],
    "published": {},
    "launch": {},
    "broken_launches": [],
    "sweep_found": {},
    "worker_left_alone": [],
    "worker_may_return": False,
    "worker_nothing_to_start": False,
}
"""Initial values of facts that later stages set."""


def plan(task: Task) -> dict[str, Any]:
    """Check and resolve the options, and show the plan. Returns the facts `plan` and `cluster`."""
    command = task.arguments.get("command", "train")
    options = command_line.operator_options(command, task.task_vars)
    boolean("preflight", options.get("preflight", True))
    if command == "playbooks/slurm" and "workers" in options:
        # Slurm chooses the hosts.
        integer("workers", options["workers"])
    _check_lines(options)
    kind = str(task.arguments.get("run_kind", "runs"))
    if command == "trial":
        check_name("sweep", kind.partition("/")[2])
    if "run" in options and kind == "runs" and not task.check_mode:
        task.warn([under_way.restore(str(options["run"]))])
    asked = OperatorRequest.of(_selftest(options) if command == "doctor" else options)
    inventory, number = plan_command.inventory(task.task_vars), int(task.template(task.arguments["default_workers"]))
    inventory = replace(
        inventory,
        spares=inventory.spares if command == "train" else (),
        apart=inventory.apart if command in ("train", "doctor") else (),
    )
    writes = not task.check_mode
    meanwhile = functools.partial(preload.preloading, task) if command == "train" and writes else plan_command.nothing
    plan = plan_command.make_plan(asked, inventory, kind, number, task.arguments["packs"], writes, meanwhile)
    if plan.script and command != "train":
        script_plan.refuse(plan.folder, f"{command}.yml")
    if command == "playbooks/slurm":
        run_recovery.check_job(plan.config)
    if asked.show_config:
        # The following stages have nothing to do.
        nothing = {"left_out": [BROKEN, SETTLE, PREFLIGHT, EVALUATE]}
        return {
            "show_last": plan.config_yaml.rstrip(),
            "ansible_facts": {**LATER, "plan": replace(plan, complete=True), "cluster": plan.posts, "run_options": {}, **nothing},
        }
    if command == "train" and not plan.complete:
        launches.check_job(plan.run, LaunchRecord.read(plan.folder))
    plan = replace(plan, command=command, typed=plan_command.typed(options, plan.run))
    if plan.complete and command == "train" and not plan.script and not task.check_mode:
        task.warn([mlflow_log.log(RunFolder(plan.folder), plan.config["telemetry"]["mlflow"])])
    already = {"show_last": _already(plan, not asked.evaluate)} if plan.complete else {}
    # A run that trains may refuse changed options: `settle_run` shows the plan once its hosts report no conflict.
    shown = [] if waits(plan) else [plan_command.shown_plan(plan, task.task_vars["hostvars"], task.check_mode)]
    broken, hosts = _broken(task, command), plan.posts
    repeats = command != "train" or plan.complete or "preflight" in options or bool(broken.get("broken_launches"))
    checked = None if repeats else recent_check.passed(plan)
    left_out = _left_out(plan, options, broken, checked)
    if plan.complete:
        reservations.release(plan.run)
        plan = _trained_with(plan)
        hosts = RunFolder(plan.folder).remaining(plan.hosts)
    return {
        **already,
        **({"show": "\n".join([*shown, checked] if checked else shown)} if shown or checked else {}),
        "ansible_facts": {**LATER, "plan": plan, "cluster": hosts, "run_options": options, **broken, "left_out": left_out},
        **(_before_start(plan) if command in ("train", "doctor") and not plan.complete else {}),
    }


def _broken(task: Task, command: str) -> dict[str, Any]:
    """Unfinished launches of killed commands, which this command repairs."""
    heals = command in ("train", "doctor") and not task.check_mode
    return {"broken_launches": launches.broken(task.task_vars["groups"]["workers"])} if heals else {}


def _left_out(plan: Plan, options: dict[str, Any], broken: dict[str, Any], checked: str | None) -> list[str]:
    """Stages that have nothing to do: Ansible would start a process for each of their tasks and hosts to find that out."""
    needed = {BROKEN: bool(broken.get("broken_launches"))}
    if plan.command == "train":
        checks = not plan.complete and checked is None and boolean("preflight", options.get("preflight", True))
        evaluates = boolean("evaluate", options.get("evaluate", False))
        needed |= {SETTLE: plan.resume and not plan.complete, PREFLIGHT: checks, EVALUATE: evaluates}
    return [stage for stage, is_needed in needed.items() if not is_needed]


def _before_start(plan: Plan) -> dict[str, str]:
    """Message for Ctrl-C before the first worker starts."""
    earlier = f" Of an earlier launch: ansible-playbook status.yml -e run={plan.run}" if plan.resume else ""
    return {"before_start": f"This command started nothing.{earlier}"}


def waits(plan: Plan) -> bool:
    """Return whether the plan is shown only after the hosts were inspected, because it changes a run that may be training."""
    return plan.command == "train" and bool(plan.changes) and not plan.complete


def _trained_with(plan: Plan) -> Plan:
    """The plan of a complete run with its recorded settings, including its hosts' threads, for the stages after training."""
    trained = LaunchRecord.read(plan.folder)
    if plan.script:
        return plan
    before = {host.name: host for host in trained.hosts}
    hosts = [from_plain(Host, to_plain(before.get(host.name, host)) | to_plain(host)) for host in plan.hosts]
    return replace(plan, hosts=hosts, dataset=trained.dataset, code=trained.code, code_sha256=trained.code_sha256)


SLURM = {"time": (re.compile(r"[0-9:-]{1,20}"), "1:30:00"), "partition": (re.compile(r"[A-Za-z0-9][A-Za-z0-9._,-]{0,99}"), "short")}
"""Variables that become lines of Slurm's script, with their pattern and an example."""


def _check_lines(options: dict[str, Any]) -> None:
    """Refuse values that would end a line of Slurm's script.

    Raises:
        ConfigError: a value that Slurm would not accept.
    """
    for name, (form, example) in SLURM.items():
        if name in options and not form.fullmatch(str(options[name])):
            raise ConfigError(f"{name}={printable(options[name], 80)}: expected what Slurm takes, as in -e {name}={example}")


def _selftest(options: dict[str, Any]) -> dict[str, Any]:
    """Variables of the doctor's own run: a few steps of the requested training, under a unique name."""
    boolean("selftest", options.get("selftest", True))
    return {**options, "selftest": True, "run": f"selftest-{secrets.token_hex(4)}"}


def _already(plan: Plan, commands: bool) -> str:
    """Result of a run that is already complete, with the next `commands`."""
    run, asked = RunFolder(plan.folder), plan.counts.get("epochs", 0)
    summary = run.summary
    shown = shown_result(run, summary, commands)
    if plan.script:
        return f"Nothing to do: {plan.script['main']} has ended well already.\n\n{shown}"
    done = summary.epochs_done or asked
    more = f", more than the {asked:,} asked for" if done > asked else ""
    return f"Nothing to do: {text.count(done, 'epoch')} {'is' if done == 1 else 'are'} done already{more}.\n\n{shown}"
