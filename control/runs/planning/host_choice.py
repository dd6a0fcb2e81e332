"""The hosts of a run, chosen from the inventory, with batch size and environment."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from control.common.operator_variables import integer
from control.runs.hosts import host_roles
from control.runs.planning.plan_request import Inventory
from control.runs.planning.resolve import with_keys
from control.runs.results.summary import Summary
from trainer.common.errors import ConfigError
from trainer.common.suggest import nearest
from trainer.config import schema as configs
from trainer.config.schema import Config
from trainer.rundir.launch_record import Host, LaunchRecord, training


def with_batch_sizes(config: Config, hosts: Sequence[Host]) -> Config:
    """Take batch sizes from the inventory (`worker_batch_size`), unless the configuration has its own.

    Raises:
        ConfigError: an invalid size, or a list whose length is not the number of hosts.
    """
    listed = config.train.batch_sizes
    if listed is None and any(host.batch_size is not None for host in hosts):
        sizes = [integer(f"worker_batch_size of {host.name}", host.batch_size or config.train.batch_size) for host in hosts]
        return with_keys(config, {"train.batch_sizes": sizes})
    if isinstance(listed, tuple) and (misfit := configs.sizes_misfit(listed, len(hosts))):
        raise ConfigError(f"{misfit}, or null (-e set=train.batch_sizes=null) for equal ones")
    return config


def with_environment(host: Host, variables: dict[str, str]) -> Host:
    """A host with all environment variables of its worker; the run's `variables` take precedence over the inventory's."""
    return replace(host, environment=host.environment | variables)


def choose_hosts(inventory: Inventory, workers: int | str | None, default: int, existing: Path | None) -> list[Host]:
    """The hosts that train: the named ones, or the first N of the inventory; a resumed run prefers its own hosts.

    Args:
        inventory: hosts on which the run may train.
        workers: number of hosts, or names as `node2,node3`; None: as many as before, or the `default`.
        default: number of hosts for a new run.
        existing: the run's directory, if it was launched.

    Raises:
        ConfigError: no such hosts, too few hosts, or a run that may still train would also train on other hosts.
    """
    by_name = {host.name: host for host in [*inventory.hosts, *inventory.spares]}
    record = LaunchRecord.read(existing)
    before = [host.name for host in training(record.hosts)]
    if isinstance(workers, str):
        names = _named_hosts(workers, list(by_name), inventory.apart)
        _refuse_elsewhere(workers, existing, before, names)
    else:
        number = workers or len(before) or default
        # Slurm chose the hosts of a job.
        own = [name for name in before if name in by_name and not record.slurm]
        others = [host.name for host in inventory.hosts if host.name not in own]
        names = [*own, *others][:number]
        if number > len(names):
            spares = f", and as spares {', '.join(host.name for host in inventory.spares)}" if inventory.spares else ""
            apart = f", and {', '.join(host.name for host in inventory.apart)}, which train nothing" if inventory.apart else ""
            there = f"{len(names)} ({', '.join(names)}){spares}{apart}"
            raise ConfigError(f"workers={number}: the inventory has {there}; add hosts or ask for fewer")
    hosts = [by_name[name] for name in names]
    check_roles(hosts)
    check_gpus(hosts)
    return hosts


def choose_spares(spares: Sequence[Host], hosts: Sequence[Host]) -> list[Host]:
    """The spares of a run that may go on without a host.

    Raises:
        ConfigError: a spare that could not take the place of one of the `hosts`.
    """
    names = [host.name for host in hosts]
    free = [host for host in spares if host.name not in names]
    check_roles(free)
    check_gpus([*hosts, *free])
    return free


def _named_hosts(asked: str, known: list[str], apart: Sequence[Host] = ()) -> list[str]:
    """The hosts in a list such as `node2,node3`, by rank.

    Raises:
        ConfigError: a host is not in the inventory (with the nearest name), appears twice, or is one that trains nothing.
    """
    names = [name.strip() for name in asked.split(",")]
    roles = {host.name: host.role for host in apart}
    for name in names:
        if name in roles:
            group = host_roles.GROUPS[roles[name]]
            raise ConfigError(
                f"workers={asked}: {name} is {roles[name]} in the inventory (group {group}), and takes no steps. Fix: name others; it is "
                "added by itself to asynchronous runs"
            )
        if name not in known:
            raise ConfigError(
                f"workers={asked}: {name!r} is no host of the inventory{nearest(name, known)}; expected how many train, or which of "
                f"{', '.join(known)}, as in workers={min(2, len(known))} or workers={','.join(known[-2:])}"
            )
        if names.count(name) > 1:
            raise ConfigError(f"workers={asked}: {name} appears twice; name each host once")
    return names


def _refuse_elsewhere(asked: str, existing: Path | None, before: list[str], names: list[str]) -> None:
    """Refuse other hosts for a run whose workers may still live on the old ones: the new hosts could not detect those workers."""
    if existing is None or set(before) & set(names) or not Summary.read(existing).under_way:
        return
    raise ConfigError(
        f"workers={asked}: run={existing.name} was started on {', '.join(before)}, and its end has not been seen; stop it there first: "
        f"ansible-playbook stop.yml -e run={existing.name}"
    )


def check_roles(hosts: Sequence[Host]) -> None:
    """Refuse training hosts with a role that a training host can't have.

    Raises:
        ConfigError: the host, and its role.
    """
    for host in hosts:
        if host.role:
            raise ConfigError(
                f"worker_role={host.role} of {host.name}: expected ps, and only for a host in the groups workers and "
                f"parameter_servers. Fix: put {host.name} into parameter_servers, too; an evaluator into evaluators, without "
                "worker_role; or take worker_role out of the inventory"
            )


def check_gpus(hosts: Sequence[Host]) -> None:
    """Refuse workers with different numbers of GPUs: TensorFlow's collectives need the same number on each.

    Raises:
        ConfigError: the host whose number differs from the first host's.
    """
    usual = hosts[0].gpus
    for host in hosts:
        if host.gpus != usual:
            raise ConfigError(
                f"gpus={host.gpus} of {host.name}: {hosts[0].name} has {usual}, but all workers of a run need the same "
                "number; set the smallest number for all, or leave hosts out (-e workers=N takes the first N)"
            )
