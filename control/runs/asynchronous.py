"""Asynchronous runs: which of the hosts keep weights, and what such a run can't do."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from control.remote.remote import WORKER_LOG
from control.runs.cluster import server_endpoints, with_server
from trainer.asynchronous.roles import CHIEF, ROLES, SERVER, WORKER
from trainer.asynchronous.server import LOG
from trainer.config import Config, nearest
from trainer.errors import ConfigError
from trainer.rundir import recorded
from trainer.telemetry import chief_records

KIND = "staleness"
"""Of the records that the chief writes after each epoch."""
FEWEST = 2
"""Hosts of an asynchronous run: the chief, and one that computes."""


def with_servers(hosts: Sequence[dict[str, Any]], servers: Collection[str]) -> list[dict[str, Any]]:
    """The hosts, of which some also have a parameter server: those of the inventory's group, or the first."""
    names = {host["name"] for host in hosts} & set(servers) or {hosts[0]["name"]}
    return [with_server(host) if host["name"] in names else host for host in hosts]


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
    if gpus := [host["name"] for host in hosts if host.get("gpus")]:
        raise ConfigError(f"{asked}: {gpus[0]} has GPUs in the inventory, and its steps need processors only. Fix: leave it out")
    others = {
        "recovery.elastic": (config.recovery.elastic, "its workers come and go anyway"),
        "recovery.standby": (config.recovery.standby, "a worker starts again while the others train"),
        "train.batch_sizes": (config.train.batch_sizes, "each worker takes batches of train.batch_size, a fast one more of them"),
        "reduction.name": (config.reduction.name != "auto" and config.reduction.name, "no gradients are summed"),
        "schedule.scaling": (config.schedule.scaling != "none" and config.schedule.scaling, "a step is of one worker's batch"),
    }
    for key, (value, why) in others.items():
        if value:
            raise ConfigError(f"{key}={value}: {why} with {asked}. Fix: leave one of them out")
    if not config.recovery.max_restarts:
        raise ConfigError(f"recovery.max_restarts=0: with {asked}, supervisors end the workers with the chief. Fix: leave it out")


def check_model(compiled: dict[str, Any] | None) -> None:
    """Refuse a model whose own step would update shared variables in between.

    Raises:
        ConfigError: what is its own.
    """
    if compiled and compiled["own"]:
        raise ConfigError(
            f"strategy.name=parameter_server: the model has a {compiled['own'][0]} of its own, which can't be trained asynchronously. "
            "Fix: leave it out, or use Keras' own train_step"
        )


def roles(hosts: Sequence[dict[str, Any]]) -> list[str]:
    """What each host does in an asynchronous run, by rank, as `chief, ps`; empty for a synchronous one."""
    servers = server_endpoints(hosts)
    first = [CHIEF, *[WORKER] * (len(hosts) - 1)]
    return [f"{role}, {SERVER}" if rank in servers else role for rank, role in enumerate(first)] if servers else []


def shown(hosts: Sequence[dict[str, Any]], staleness: int | None) -> str:
    """Who does what in an asynchronous run, and how far its workers may be apart."""
    chief, *workers = (host["name"] for host in hosts)
    keeping = [host["name"] for host in hosts if "server_port" in host]
    keep = "keeps" if len(keeping) == 1 else "keep"
    bound = "any staleness" if staleness is None else f"staleness {staleness}"
    return f"asynchronous, {bound}: {chief} hands out steps, {', '.join(workers)} compute, {', '.join(keeping)} {keep} the weights"


def logs(hosts: Sequence[dict[str, Any]], role: str | None) -> dict[str, Any]:
    """The `file` of the logs that are asked for, and the `hosts` that have one, by name.

    Raises:
        ConfigError: there is no such role.
    """
    names = [host["name"] for host in hosts]
    if role is None:
        return {"file": WORKER_LOG, "hosts": names}
    if role not in ROLES:
        raise ConfigError(f"role={role}: unknown{nearest(role, ROLES)}; it must be one of: {', '.join(ROLES)}")
    if not server_endpoints(hosts):
        raise ConfigError(f"role={role}: the run is synchronous, and all its hosts are workers. Fix: leave it out")
    of_role = {CHIEF: names[:1], WORKER: names[1:], SERVER: [names[rank] for rank in server_endpoints(hosts)]}
    return {"file": LOG if role == SERVER else WORKER_LOG, "hosts": of_role[role]}


def result(folder: Path) -> list[tuple[str, str]]:
    """How stale the steps of a run were, and who computed them, as names and values; nothing of a synchronous run."""
    hosts = recorded(folder).get("hosts", [])
    records = [one for one in chief_records(folder) if one["kind"] == KIND] if server_endpoints(hosts) else []
    if not records:
        return []
    calls = Counter[int]()
    for record in records:
        calls.update(dict(enumerate(record["by_worker"])))
    names = [host["name"] for host in hosts[1:]]
    shares = ", ".join(f"{name} {calls[number] / max(1, calls.total()):.0%}" for number, name in enumerate(names))
    return [("staleness", staleness(calls_by_staleness(records))), ("computed by", shares)]


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
