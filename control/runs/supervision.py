"""The command that starts a worker on its host: under a supervisor, unless a run may not start again by itself."""

from typing import Any

from control.runs.cluster import endpoint


def is_supervised(plan: dict[str, Any]) -> bool:
    """Whether supervisors start a run's workers again."""
    return "script" not in plan and plan["config"]["recovery"]["max_restarts"] > 0


def command(
    plan: dict[str, Any], worker: list[str], folder: str, rank: int, session: str, silence: float, hosts: list[dict[str, Any]]
) -> list[str]:
    """Arguments of a host's Python.

    Args:
        plan: the run's plan.
        worker: the worker's arguments, `train ...`.
        folder: its part of the run directory on the host.
        rank: its rank.
        session: its tmux session.
        silence: seconds without a heartbeat after which it counts as frozen.
        hosts: all workers, by rank.
    """
    if not is_supervised(plan):
        return ["-m", "trainer", *worker]
    limits = plan["config"]["recovery"]
    named = {
        "--folder": folder,
        "--rank": rank,
        "--hosts": ",".join(host["name"] for host in hosts),
        "--peers": ",".join(endpoint({**host, "port": host["direct_port"]}) for host in hosts),
        "--launch": plan["nonce"],
        "--session": session,
        "--silence": silence,
        **{f"--{name.replace('_', '-')}": limits[name] for name in ("max_restarts", "max_restarts_per_hour", "rejoin_wait", "hang")},
    }
    return ["-m", "trainer.supervision", *(f"{name}={value}" for name, value in named.items()), "--", *worker]
