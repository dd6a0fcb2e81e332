"""Asynchronous runs: the hosts that keep weights, and settings that such a run can't follow."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from control.runs.hosts.inventory_hosts import with_server
from trainer.common.errors import ConfigError
from trainer.config.schema import Config
from trainer.parameter_server.roles import EVALUATOR, SERVER
from trainer.rundir.launch_record import Host, LaunchRecord

FEWEST = 2
"""Fewest hosts of an asynchronous run: the chief, and one that computes."""


def with_roles(hosts: Sequence[Host], servers: Collection[str], apart: Sequence[Host]) -> list[Host]:
    """All hosts of a run: those that train, some of them also with a parameter server, then those that are `apart`.

    Servers are the members of the inventory's group. Without any member, the first host has a server.
    """
    names = {host.name for host in hosts} & set(servers)
    if not names and all(host.role != SERVER for host in apart):
        names = {hosts[0].name}
    keeping = [with_server(host) if host.name in names else host for host in hosts]
    return [*keeping, *(with_server(host) if host.role == SERVER else host for host in apart)]


def check_settings(config: Config, hosts: Sequence[Host]) -> None:
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
    if gpus := [host for host in hosts if host.gpus]:
        raise ConfigError(
            f"{asked}: {gpus[0].name} has gpus={gpus[0].gpus} in the inventory, and an asynchronous run trains on processors only. "
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


def useful(apart: Sequence[Host], test_examples: int, compiled: dict[str, Any] | None) -> tuple[list[Host], list[str]]:
    """The non-training hosts that a run can use, and a warning if it can't use its evaluators."""
    evaluators = [host for host in apart if host.role == EVALUATOR]
    if not evaluators or (test_examples and (not compiled or compiled["validates"])):
        return list(apart), []
    why = "the model has no loss, nor a test_step of its own" if test_examples else "the dataset has no test examples"
    names = ", ".join(host.name for host in evaluators)
    return [host for host in apart if host not in evaluators], [f"{why}, so {names} (evaluators) take no part in this run"]


def of_launch(run: Path | None) -> list[Host]:
    """The non-training hosts of a run, in the form of the inventory's."""
    kept = ("name", "address", "port", "direct_port", "port_chosen", "environment", "role")
    return [Host(**{key: getattr(host, key) for key in kept}) for host in LaunchRecord.read(run).hosts if host.role]


def check_model(compiled: dict[str, Any] | None) -> None:
    """Refuse a model whose steps would lose another worker's updates in between.

    Raises:
        ConfigError: the model has its own step, or an optimizer that accumulates gradients.
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
