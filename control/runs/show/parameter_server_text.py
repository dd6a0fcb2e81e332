"""Texts on a run with parameter servers, for the plan, the result and logs.yml."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from control.common import text
from control.remote.worker_files import chief_records
from control.runs.hosts.host_roles import GROUPS, of_role
from control.runs.results import evaluations, metric_text
from control.runs.results.snapshot_choice import marks
from control.runs.results.staleness import KIND, calls_by_staleness, staleness
from trainer.common.errors import ConfigError
from trainer.common.suggest import nearest
from trainer.parameter_server.roles import EVALUATOR, ROLES, SERVER
from trainer.rundir.launch_record import Host, LaunchRecord, server_endpoints, training
from trainer.rundir.layout import SERVER_LOG
from trainer.rundir.metrics_log import WORKER_LOG


def shown(hosts: Sequence[Host], staleness: int | None) -> str:
    """Who does what in an asynchronous run, and how far its workers may be apart."""
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
    """The `hosts` that have a log of those that are asked for, by name, and the `files` of these.

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


def result(folder: Path) -> list[tuple[str, str]]:
    """How stale the steps of a run were, and who computed them, as names and values; nothing of a synchronous run."""
    hosts = LaunchRecord.read(folder).hosts
    records = [one for one in chief_records(folder) if one["kind"] == KIND] if server_endpoints(hosts) else []
    if not records:
        return []
    calls = Counter[int]()
    for record in records:
        calls.update(dict(enumerate(record["by_worker"])))
    names = [host.name for host in training(hosts)[1:]]
    shares = ", ".join(f"{name} {calls[number] / max(1, calls.total()):.0%}" for number, name in enumerate(names))
    return [("staleness", staleness(calls_by_staleness(records))), ("computed by", shares), ("evaluated", _evaluated(folder, hosts))]


def _evaluated(folder: Path, hosts: Sequence[Host]) -> str:
    """How many epochs the evaluators have evaluated, and the best of them by the validation; empty if there are none."""
    rows = evaluations.rows(folder / "evaluations.csv") if of_role(hosts, EVALUATOR) else {}
    if not rows:
        return ""
    best = next((epoch for epoch, words in marks(folder).items() if "best" in words and epoch in rows), max(rows))
    return f"{text.count(len(rows), 'epoch')} in evaluations.csv; {metric_text.evaluation({'epoch': best, 'metrics': rows[best]})}"
