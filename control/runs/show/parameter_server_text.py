"""Texts on runs with parameter servers, for the plan, the result and logs.yml."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from control.common import text
from control.remote.worker_files import chief_records
from control.runs.hosts.host_roles import GROUPS, of_role
from control.runs.results import metric_text
from control.runs.results.run_folder import RunFolder
from trainer.common.errors import ConfigError
from trainer.common.suggest import nearest
from trainer.parameter_server.roles import EVALUATOR, ROLES, SERVER
from trainer.rundir.launch_record import Host, server_endpoints, training
from trainer.rundir.layout import SERVER_LOG
from trainer.rundir.metrics_log import WORKER_LOG

STALENESS = "staleness"
"""Kind of the records that the chief writes after each epoch."""


def roles_text(hosts: Sequence[Host], staleness: int | None) -> str:
    """Text on the hosts' roles in an asynchronous run, and on the allowed distance between its workers."""
    chief, *workers = (host.name for host in training(hosts))
    keeping = [host.name for host in hosts if host.server_port is not None]
    keep = "keeps" if len(keeping) == 1 else "keep"
    bound = "any staleness" if staleness is None else f"staleness {staleness}"
    evaluators = of_role(hosts, EVALUATOR)
    evaluate = f", {', '.join(evaluators)} {'evaluates' if len(evaluators) == 1 else 'evaluate'} snapshots" if evaluators else ""
    return (
        f"asynchronous, {bound}: {chief} hands out steps, {', '.join(workers)} compute, {', '.join(keeping)} {keep} the weights{evaluate}"
    )


def logs(hosts: Sequence[Host], role: str | None) -> dict[str, Any]:
    """Requested hosts that have a log: their names as `hosts`, their logs as `files`.

    Raises:
        ConfigError: there is no such role.
    """
    names = [host.name for host in hosts]
    if role is None:
        return {"files": dict.fromkeys(names, WORKER_LOG), "hosts": names}
    if role not in ROLES:
        raise ConfigError(f"role={role}: unknown{nearest(role, ROLES)}; it must be one of: {', '.join(ROLES)}")
    if not server_endpoints(hosts):
        raise ConfigError(f"role={role}: the run is synchronous, and all its hosts are workers. Fix: leave it out")
    if not (asked := of_role(hosts, role)):
        raise ConfigError(f"role={role}: the run has no {role}. Fix: put hosts into the inventory's group {GROUPS[role]}, or leave it out")
    beside = {host.name for host in training(hosts)}
    files = {name: SERVER_LOG if role == SERVER and name in beside else WORKER_LOG for name in asked}
    return {"files": files, "hosts": asked}


def result(run: RunFolder) -> list[tuple[str, str]]:
    """Names and values on the staleness of a run's steps and the workers that computed them; empty for a synchronous run."""
    hosts = run.record.hosts
    records = [one for one in chief_records(run.path) if one["kind"] == STALENESS] if server_endpoints(hosts) else []
    if not records:
        return []
    calls = Counter[int]()
    for record in records:
        calls.update(dict(enumerate(record["by_worker"])))
    names = [host.name for host in training(hosts)[1:]]
    shares = ", ".join(f"{name} {calls[number] / max(1, calls.total()):.0%}" for number, name in enumerate(names))
    return [("staleness", staleness(calls_by_staleness(records))), ("computed by", shares), ("evaluated", _evaluated(run))]


def _evaluated(run: RunFolder) -> str:
    """Text on the number of evaluated epochs, and the best of them by validation; empty without evaluators' results."""
    rows = run.evaluations.metrics if run.evaluators else {}
    if not rows:
        return ""
    best = next((epoch for epoch, words in run.marks.items() if "best" in words and epoch in rows), max(rows))
    return f"{text.count(len(rows), 'epoch')} in evaluations.csv; {metric_text.evaluation({'epoch': best, 'metrics': rows[best]})}"


def calls_by_staleness(records: Iterable[Mapping[str, Any]]) -> Counter[int]:
    """Number of calls by staleness, over all epochs in a chief's records."""
    stale = Counter[int]()
    for record in records:
        if record["kind"] == STALENESS:
            stale.update(dict(zip(record["staleness"], record["calls"], strict=False)))
    return stale


def staleness(calls: Mapping[int, int]) -> str:
    """Text on staleness: the number of other workers' steps that changed the weights before a call's update arrived."""
    values = sorted(Counter(calls).elements())
    if not values:
        return "no call has ended"
    middle, late = (values[int(share * (len(values) - 1))] for share in (0.5, 0.99))
    return f"median {middle}, 99% at most {late}, largest {values[-1]} steps of others between reading and updating the weights"
