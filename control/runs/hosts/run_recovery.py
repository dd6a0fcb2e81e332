"""How a run recovers from faults, from its configuration."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from control.common import configurations
from trainer.common.errors import ConfigError
from trainer.config import schema as configs
from trainer.rundir.launch_record import Host


def check_job(config: dict[str, Any]) -> None:
    """Refuse a job of Slurm that should train asynchronously, or go on without a host, whose loss ends a job (ConfigError)."""
    if config.get("strategy", {}).get("name") == configs.PARAMETER_SERVER:
        raise ConfigError(
            "strategy.name=parameter_server: the tasks of a job of Slurm are all workers. Fix: leave it out, or use train.yml"
        )
    if config["recovery"]["elastic"]:
        raise ConfigError("recovery.elastic=true: Slurm ends a job that loses a node. Fix: leave it out, and continue the run afterwards")


def shown(config: dict[str, Any], hosts: Sequence[Host], spares: Sequence[Host]) -> str:
    """With how many workers a run goes on when hosts are lost, and with which spares, in words; empty if only with all."""
    if not config.get("recovery", {}).get("elastic"):
        return ""
    workers = len(hosts)
    number = max(config["recovery"]["min_workers"], (workers + 1) // 2)
    first = f" ({hosts[0].name} among them)" if 2 * number == workers else ""
    names = f"; {', '.join(host.name for host in spares)} can take the place of one" if spares else ""
    return f"goes on without lost hosts, with at least {number} of {workers} workers{first}{names}"


def is_elastic(folder: Path) -> bool:
    """Return whether the run in a folder on this machine may go on without a host."""
    recovery = _settings(folder)
    return bool(recovery.get("elastic") and recovery.get("max_restarts"))


def rejoin_wait(folder: Path) -> float:
    """Seconds in which supervisors of the run in a folder on this machine wait for each other; 0: it has none."""
    recovery = _settings(folder)
    return float(recovery["rejoin_wait"]) if recovery.get("max_restarts") else 0.0


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / "config.yml"
    return dict(configurations.load(path).get("recovery", {})) if path.is_file() else {}
