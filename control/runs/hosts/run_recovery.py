"""How a run recovers from faults, from its configuration."""

from collections.abc import Sequence
from typing import Any

from trainer.common.errors import ConfigError
from trainer.config import schema as configs
from trainer.rundir.launch_record import Host
from trainer.supervision.restart_policy import may_go_on


def check_job(config: dict[str, Any]) -> None:
    """Refuse a Slurm job that should train asynchronously or go on without a host: a lost host ends the job (ConfigError)."""
    if config.get("strategy", {}).get("name") == configs.PARAMETER_SERVER:
        raise ConfigError(
            "strategy.name=parameter_server: the tasks of a job of Slurm are all workers. Fix: leave it out, or use train.yml"
        )
    if config["recovery"]["elastic"]:
        raise ConfigError("recovery.elastic=true: Slurm ends a job that loses a node. Fix: leave it out, and continue the run afterwards")


def recovery_text(config: dict[str, Any], hosts: Sequence[Host], spares: Sequence[Host]) -> str:
    """Text on the number of workers with which a run goes on when hosts are lost, and its spares; empty if it needs all workers."""
    if not config.get("recovery", {}).get("elastic"):
        return ""
    workers, least = len(hosts), config["recovery"]["min_workers"]
    number = next((number for number in range(1, workers) if may_go_on(range(number), workers, least)), max(least, workers))
    first = "" if number >= workers or may_go_on(range(1, number + 1), workers, least) else f" ({hosts[0].name} among them)"
    names = f"; {', '.join(host.name for host in spares)} can take the place of one" if spares else ""
    return f"goes on without lost hosts, with at least {number} of {workers} workers{first}{names}"
