"""Asynchronous runs: which of the hosts keep weights, and what such a run can't do."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from control import text
from control.remote.remote import WORKER_LOG
from control.remote.worker_files import chief_records
from control.runs import evaluations
from control.runs.cluster import server_endpoints, trains, with_server
from control.runs.snapshot_choice import marks
from trainer.common.errors import ConfigError
from trainer.common.suggest import nearest
from trainer.config.schema import Config
from trainer.parameter_server.roles import CHIEF, EVALUATOR, ROLES, SERVER, WORKER
from trainer.rundir.layout import recorded
from trainer.rundir.phases import LOG

KIND = "staleness"
"""Of the records that the chief writes after each epoch."""
KEYS = ("name", "address", "port", "direct_port", "port_chosen", "environment", "role")
"""Of a host in the inventory, for one that takes no steps."""
GROUPS = {SERVER: "parameter_servers", EVALUATOR: "evaluators"}
"""Of the inventory, by role."""
FEWEST = 2
"""Hosts of an asynchronous run: the chief, and one that computes."""


def with_roles(hosts: Sequence[dict[str, Any]], servers: Collection[str], apart: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All hosts of a run, given those that train: some of these also have a parameter server, and those that are `apart` follow.

    Servers are those of the inventory's group. Without any, the first host has one.
    """
    names = {host["name"] for host in hosts} & set(servers)
    if not names and all(host["role"] != SERVER for host in apart):
        names = {hosts[0]["name"]}
    keeping = [with_server(host) if host["name"] in names else host for host in hosts]
    return [*keeping, *(with_server(host) if host["role"] == SERVER else host for host in apart)]


def check(config: Config, hosts: Sequence[dict[str, Any]]) -> None:
    """Refuse settings that an asynchronous run could not follow.

    Raises:
        ConfigError: the setting, and the fix.
    """
    asked = "strategy.name=parameter_server"
    if len(hosts) < FEWEST:
        raise ConfigError(
            f"{asked}, workers={len(hosts)}: the first host hands out steps and computes none, so at least {FEWEST} are needed. "
            "Fix: more workers (-e workers=N), or leave it out"
        )
    if gpus := [host for host in hosts if host.get("gpus")]:
        raise ConfigError(
            f"{asked}: {gpus[0]['name']} has gpus={gpus[0]['gpus']} in the inventory, and an asynchronous run trains on processors only. "
            "Fix: hosts without gpus (-e workers=A,B,C), or another strategy.name"
        )
    others = {
        "recovery.elastic": (config.recovery.elastic, "its workers come and go anyway"),
        "recovery.standby": (config.recovery.standby, "a worker starts again while the others train"),
        "train.batch_sizes": (
            config.train.batch_sizes,
            "each worker takes batches of train.batch_size (worker_batch_size in the inventory sets it, too), a fast one more of them,",
        ),
        "reduction.name": (config.reduction.name != "auto" and config.reduction.name, "no gradients are summed"),
        "schedule.scaling": (config.schedule.scaling != "none" and config.schedule.scaling, "a step is of one worker's batch"),
    }
    for key, (value, why) in others.items():
        if value:
            raise ConfigError(f"{key}={value}: {why} with {asked}. Fix: leave one of them out")
    if not config.recovery.max_restarts:
        raise ConfigError(f"recovery.max_restarts=0 leaves out the supervisors, which {asked} needs. Fix: a larger number")


def useful(apart: Sequence[dict[str, Any]], test_examples: int, compiled: dict[str, Any] | None) -> tuple[list[dict[str, Any]], list[str]]:
    """The hosts that a run can use of those that train nothing, and a warning if it can't use its evaluators."""
    evaluators = [host for host in apart if host["role"] == EVALUATOR]
    if not evaluators or (test_examples and (not compiled or compiled["validates"])):
        return list(apart), []
    why = "the model has no loss, nor a test_step of its own" if test_examples else "the dataset has no test examples"
    names = ", ".join(host["name"] for host in evaluators)
    return [host for host in apart if host not in evaluators], [f"{why}, so {names} (evaluators) take no part in this run"]


def of_launch(run: Path | None) -> list[dict[str, Any]]:
    """The hosts of a run that train nothing, as the inventory would give them."""
    return [{key: host[key] for key in KEYS if key in host} for host in recorded(run).get("hosts", []) if "role" in host]


def check_model(compiled: dict[str, Any] | None) -> None:
    """Refuse a model whose steps would lose what another worker wrote in between.

    Raises:
        ConfigError: a step of its own, or an optimizer that collects gradients.
    """
    if compiled and compiled["accumulates"]:
        raise ConfigError(
            "strategy.name=parameter_server: the model's optimizer has gradient_accumulation_steps; workers would write over each other's "
            "sums and counts. Fix: leave it out, and take a larger train.batch_size"
        )
    if compiled and compiled["own"]:
        raise ConfigError(
            f"strategy.name=parameter_server: the model has a {compiled['own'][0]} of its own, which can't be trained asynchronously. "
            "Fix: leave it out, or use Keras' own train_step"
        )


def roles(hosts: Sequence[dict[str, Any]]) -> list[str]:
    """What each host does in an asynchronous run, by rank, as `chief, ps`; empty for a synchronous one."""
    servers = server_endpoints(hosts)
    first = [host.get("role", WORKER if rank else CHIEF) for rank, host in enumerate(hosts)]
    return [f"{role}, {SERVER}" if rank in servers and role != SERVER else role for rank, role in enumerate(first)] if servers else []


def shown(hosts: Sequence[dict[str, Any]], staleness: int | None) -> str:
    """Who does what in an asynchronous run, and how far its workers may be apart."""
    chief, *workers = (host["name"] for host in trains(hosts))
    keeping = [host["name"] for host in hosts if "server_port" in host]
    keep = "keeps" if len(keeping) == 1 else "keep"
    bound = "any staleness" if staleness is None else f"staleness {staleness}"
    evaluators = _of_role(hosts, EVALUATOR)
    evaluate = f", {', '.join(evaluators)} {'evaluates' if len(evaluators) == 1 else 'evaluate'} snapshots" if evaluators else ""
    return (
        f"asynchronous, {bound}: {chief} hands out steps, {', '.join(workers)} compute, {', '.join(keeping)} {keep} the weights{evaluate}"
    )


def evaluators(launch: Mapping[str, Any]) -> list[str]:
    """Names of the hosts that evaluate snapshots, given a plan or a record."""
    return _of_role(launch.get("hosts", []), EVALUATOR)


def _of_role(hosts: Sequence[dict[str, Any]], role: str) -> list[str]:
    """Names of the hosts that have a role, among others or alone; none of a synchronous run."""
    return [host["name"] for host, those in zip(hosts, roles(hosts), strict=False) if role in those.split(", ")]


def logs(hosts: Sequence[dict[str, Any]], role: str | None) -> dict[str, Any]:
    """The `hosts` that have a log of those that are asked for, by name, and the `files` of these.

    Raises:
        ConfigError: there is no such role.
    """
    names = [host["name"] for host in hosts]
    if role is None:
        return {"files": dict.fromkeys(names, WORKER_LOG), "hosts": names}
    if role not in ROLES:
        raise ConfigError(f"role={role}: unknown{nearest(role, ROLES)}; it must be one of: {', '.join(ROLES)}")
    if not server_endpoints(hosts):
        raise ConfigError(f"role={role}: the run is synchronous, and all its hosts are workers. Fix: leave it out")
    if not (of_role := _of_role(hosts, role)):
        raise ConfigError(f"role={role}: the run has no {role}. Fix: put hosts into the inventory's group {GROUPS[role]}, or leave it out")
    beside = {host["name"] for host in trains(hosts)}
    files = {name: LOG if role == SERVER and name in beside else WORKER_LOG for name in of_role}
    return {"files": files, "hosts": of_role}


def result(folder: Path) -> list[tuple[str, str]]:
    """How stale the steps of a run were, and who computed them, as names and values; nothing of a synchronous run."""
    hosts = recorded(folder).get("hosts", [])
    records = [one for one in chief_records(folder) if one["kind"] == KIND] if server_endpoints(hosts) else []
    if not records:
        return []
    calls = Counter[int]()
    for record in records:
        calls.update(dict(enumerate(record["by_worker"])))
    names = [host["name"] for host in trains(hosts)[1:]]
    shares = ", ".join(f"{name} {calls[number] / max(1, calls.total()):.0%}" for number, name in enumerate(names))
    return [("staleness", staleness(calls_by_staleness(records))), ("computed by", shares), ("evaluated", _evaluated(folder, hosts))]


def _evaluated(folder: Path, hosts: Sequence[dict[str, Any]]) -> str:
    """How many epochs the evaluators have evaluated, and the best of them by the validation; empty if there are none."""
    rows = evaluations.rows(folder / "evaluations.csv") if _of_role(hosts, EVALUATOR) else {}
    if not rows:
        return ""
    best = next((epoch for epoch, words in marks(folder).items() if "best" in words and epoch in rows), max(rows))
    return f"{text.count(len(rows), 'epoch')} in evaluations.csv; {text.evaluation({'epoch': best, 'metrics': rows[best]})}"


def calls_by_staleness(records: Iterable[Mapping[str, Any]]) -> Counter[int]:
    """How many calls had which staleness, over all epochs among a chief's records."""
    stale = Counter[int]()
    for record in records:
        if record["kind"] == KIND:
            stale.update(dict(zip(record["staleness"], record["calls"], strict=False)))
    return stale


def staleness(calls: Mapping[int, int]) -> str:
    """By how many steps of others the weights had changed when a call's update came, given how many calls had which number."""
    values = sorted(Counter(calls).elements())
    if not values:
        return "no call has ended"
    middle, late = (values[int(share * (len(values) - 1))] for share in (0.5, 0.99))
    return f"median {middle}, 99% at most {late}, largest {values[-1]} steps of others between reading and updating the weights"
