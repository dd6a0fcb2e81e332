"""The plan of a run, made by the trainer in its own process."""

import contextlib
import secrets
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible import context
from ansible.errors import AnsibleFilterError

from control.common import project
from control.common.plan import Plan
from control.remote import trainer_process
from control.runs.hosts import free_ports
from control.runs.hosts.host_roles import GROUPS
from control.runs.hosts.inventory_hosts import check_absolute, check_hosts, cluster_hosts
from control.runs.launch import reservations, waiting_runs
from control.runs.planning import host_choice, kept_choices, parameter_servers, script_plan
from control.runs.planning.plan_request import Inventory, OperatorRequest, Request
from control.runs.results.run_names import check_run_name
from control.runs.results.summary import Summary
from control.runs.show import parameter_server_text, plan_text
from trainer.common.plain_values import from_plain, to_plain
from trainer.config.schema import PARAMETER_SERVER
from trainer.parameter_server.roles import EVALUATOR, SERVER
from trainer.rundir.launch_record import Host, LaunchRecord


def hosts(task_vars: dict[str, Any]) -> list[Host]:
    """The inventory's workers that train; raises the errors of `inventory`."""
    return list(inventory(task_vars).hosts)


def inventory(task_vars: dict[str, Any]) -> Inventory:
    """The inventory's workers, by role; their folders are absolute, so they mean the same to every user and tool.

    Raises:
        AnsibleFilterError: a relative folder, a host of another group that is no worker, or an evaluator that also has another role.
    """
    spares, servers, evaluators = (_group(task_vars, group) for group in ("spares", GROUPS[SERVER], GROUPS[EVALUATOR]))
    for group, members in (("spares", spares), (GROUPS[SERVER], servers)):
        if both := [name for name in evaluators if name in members]:
            raise AnsibleFilterError(
                f"{', '.join(both)}: in the inventory's groups {GROUPS[EVALUATOR]} and {group}, but an evaluator does nothing else. "
                "Fix: take it out of one of them"
            )
    roles = {name: SERVER for name in servers if task_vars["hostvars"][name].get("worker_role") == SERVER}
    roles |= dict.fromkeys(evaluators, EVALUATOR)
    free = [name for name in task_vars["groups"].get("workers", []) if name not in roles]
    return Inventory(
        hosts=_hosts(task_vars, [name for name in free if name not in spares]),
        spares=_hosts(task_vars, [name for name in free if name in spares]),
        servers=servers,
        apart=[replace(host, role=roles[host.name]) for host in _hosts(task_vars, list(roles))],
    )


def _group(task_vars: dict[str, Any], group: str) -> list[str]:
    """The workers that are also in another group.

    Raises:
        AnsibleFilterError: a host of that group is no worker.
    """
    members, names = (task_vars["groups"].get(one, []) for one in ("workers", group))
    if strangers := [name for name in names if name not in members]:
        raise AnsibleFilterError(
            f"{', '.join(strangers)}: in the inventory's group {group}, but not in workers. Fix: put it into both groups; it is "
            "prepared as any worker is"
        )
    return list(names)


def _hosts(task_vars: dict[str, Any], names: list[str]) -> list[Host]:
    workers = cluster_hosts(task_vars["hostvars"], names)
    for host in workers:
        variables = task_vars["hostvars"][host.name]
        check_absolute({key: str(variables[key]) for key in ("worker_root", "dfs_path", "worker_caches") if key in variables})
    return free_ports.choose(workers)


def nothing(_: Sequence[Host]) -> contextlib.AbstractContextManager[None]:
    """Do nothing while the plan is made."""
    return contextlib.nullcontext()


def make_plan(
    asked: OperatorRequest,
    inventory: Inventory,
    run_kind: str,
    default_workers: int,
    packs: str,
    write: bool,
    meanwhile: Callable[[Sequence[Host]], contextlib.AbstractContextManager[None]] = nothing,
) -> Plan:
    """The plan from `control plan`, with the run's location.

    Args:
        asked: the operator variables.
        inventory: hosts on which the run may train.
        run_kind: kind of run, which decides its folder as in `project.runs_folder`.
        default_workers: default number of workers.
        packs: folder of published datasets on the control node.
        write: whether caches may be written and the run's name reserved, because this command is about to start the run.
        meanwhile: what is done on the hosts while the plan is made.

    Raises:
        LockstepError: a refusal of the plan.
    """
    folder = project.runs_folder(run_kind)
    request = Request(
        asked=asked,
        apart=inventory.apart,
        runs=folder,
        packs=Path(packs),
        parameter_cache=project.PRIVATE / "parameters",
        write=write,
    )
    default = min(default_workers, len(inventory.hosts))
    request = replace(request, hosts=host_choice.choose_hosts(inventory, asked.workers, default, request.started))
    scripted = script_plan.is_asked(asked, folder)
    reserves = write and folder == project.RUNS and not asked.show_config
    if reserves and asked.run is not None:
        check_run_name(asked.run)
        reservations.reserve(asked.run)
    # A model's plan is made in its own process: a dataset may be the user's own code.
    if scripted:
        plan = script_plan.make_script_plan(request)
    else:
        waits = asked.queue or (request.started is not None and Summary.read(request.started).under_way)
        with nothing(()) if waits else meanwhile(request.hosts):
            plan = from_plain(Plan, trainer_process.run_trainer(["plan"], given=to_plain(request)))
    if reserves and asked.run is None:
        plan = replace(plan, run=reservations.reserve_new(plan.run, folder))
    nonce = secrets.token_hex(16)
    ticket = waiting_runs.ticket(nonce) if asked.queue else ""
    plan = replace(plan, folder=folder / plan.run, run_kind=run_kind, nonce=nonce, ticket=ticket)
    plan = _with_hosts(plan, request, inventory)
    if scripted:
        return plan
    plan = replace(plan, kept=kept_choices.of(plan, asked.remeasure))
    strategy = plan.config["strategy"]
    if strategy["name"] == PARAMETER_SERVER:
        return replace(plan, roles=parameter_server_text.roles_text(plan.hosts, strategy["staleness"]))
    return replace(plan, gradients=kept_choices.sending_text(plan), divided=kept_choices.divided(plan))


def _with_hosts(plan: Plan, request: Request, inventory: Inventory) -> Plan:
    """The plan with its hosts and spares, which have the environment of their workers, roles and ports."""
    hosts, spares = list(request.hosts), list[Host]()
    if plan.config:
        if plan.config["strategy"]["name"] == PARAMETER_SERVER:
            hosts = parameter_servers.with_roles(hosts, inventory.servers, plan.apart)
        if plan.config["recovery"]["elastic"] and not request.asked.selftest:
            spares = host_choice.choose_spares(inventory.spares, hosts)
        variables = plan.config["train"]["environment"]
        hosts, spares = ([host_choice.with_environment(host, variables) for host in some] for some in (hosts, spares))
    before = LaunchRecord.read(plan.folder).posts if plan.resume else ()
    plan = replace(plan, hosts=hosts, spares=spares)
    plan = plan.with_posts(free_ports.choose(plan.posts, plan.run, before, request.write))
    check_hosts(plan.posts)
    return plan


def shown_plan(plan: Plan, hostvars: Any, check: bool = False) -> str:
    """The plan for the terminal; the whole plan in a `check` and with `-v`."""
    every = [*plan.warnings, *_shared_addresses(plan.posts, hostvars), *_disk_warnings(plan)]
    whole = check or bool(context.CLIARGS.get("verbosity"))
    return plan_text.plan(plan, project.relative(plan.folder.parent), every, whole)


def typed(options: Mapping[str, Any], run: str) -> str:
    """Operator variables as a user would type them, the run's name first."""
    return " ".join(f"-e {shlex.quote(_assigned(name, value))}" for name, value in {"run": run, **options}.items())


def _assigned(name: str, value: Any) -> str:
    # Ansible splits at unquoted spaces.
    return f'{name}="{value}"' if " " in str(value) else f"{name}={value}"


def _shared_addresses(chosen: list[Host], hostvars: Any) -> Iterator[str]:
    """Warning about several workers on one address: intended on this machine, elsewhere mostly a mistake."""
    names: dict[str, list[str]] = {}
    for host in chosen:
        here = host.address.startswith("127.") or hostvars[host.name].get("ansible_connection") == "local"
        if not here:
            names.setdefault(host.address, []).append(host.name)
    for address, those in names.items():
        if len(those) > 1:
            yield (
                f"{', '.join(those)} have one address, {address}: their workers share one machine. "
                "Fix, if they are several machines: set ansible_host or worker_address of each in the inventory"
            )


def _disk_warnings(plan: Plan) -> list[str]:
    """Warning if a run's weights need more disk space here than is free; a resumed run already has some of them."""
    folder = next(parent for parent in plan.folder.parents if parent.is_dir())
    needed, free = plan_text.results_mb(plan.needs), shutil.disk_usage(folder).free / 2**20
    if plan.resume or free >= needed:
        return []
    return [
        f"{folder} has {free:,.0f} MB free, and the run's snapshots and states take up to {needed:,.0f}: free some, or keep fewer "
        "(-e set=checkpoint.snapshots=best, last or 10)"
    ]
