"""Check the options of `provision.yml` and the inventory, before any host is touched."""

import importlib.util
import secrets
import shlex
import socket
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ansible.errors import AnsibleFilterError

from control.common import command_line, text
from control.common.operator_variables import boolean, check_state
from control.common.task import Task
from control.doctor.checks.host import loopback
from control.provision.host_rules import inside
from control.runs.hosts.inventory_hosts import check_absolute, check_hosts, cluster_hosts
from trainer.common.errors import ConfigError
from trainer.common.plain_values import to_plain
from trainer.rundir.launch_record import Host

PATHS = ("worker_root", "python_env_path", "dfs_brick", "worker_caches")


def plan(task: Task) -> dict[str, Any]:
    """Refuse what can be refused without a host. Returns the fact `provision`: state, firewall, the members with their addresses."""
    options = command_line.operator_options("provision", task.task_vars)
    names, hostvars = task.task_vars["groups"].get("workers", []), task.task_vars["hostvars"]
    members = cluster_hosts(hostvars, names)
    state, firewall = check_state(options), boolean("firewall", options.get("firewall", True))
    here = bool(names) and all(hostvars[name].get("ansible_connection") == "local" for name in names)
    planned = {
        "state": "nothing" if here else state,
        "firewall": firewall,
        "members": to_plain(members),
        "addresses": [],
        "kind": "",
        "token": secrets.token_hex(8),
    }
    if here:
        return {"ansible_facts": {"provision": planned}, "show_last": _nothing(names, str(options.get("requirements", "")))}
    _check_members(members, state)
    for name in names:
        _check_paths(name, {path: str(hostvars[name][path]) for path in PATHS if path in hostvars[name]})
    planned["addresses"] = _addresses(str(member.address) for member in members)
    return {"ansible_facts": {"provision": planned}}


def _check_members(hosts: list[Host], state: str) -> None:
    """Refuse hosts that would be provisioned twice, and a port that no worker can have: the firewall's rules are made of these ports.

    Raises:
        ConfigError: no hosts, or two hosts with the same address.
        AnsibleFilterError: the first wrong port; ports still to be chosen are left out.
    """
    if not hosts:
        raise ConfigError("no hosts; put at least one in the inventory's group `workers`")
    twice = [address for address, count in Counter(str(host.address) for host in hosts).items() if count > 1]
    if twice:
        names = ", ".join(host.name for host in hosts if str(host.address) == twice[0])
        raise ConfigError(
            f"{names} have one address, {twice[0]}; every host needs its own: fix ansible_host or worker_address in the inventory"
        )
    for host in hosts if state == "present" else ():
        if not host.port_chosen:
            check_hosts([host])


def _check_paths(host: str, paths: dict[str, str]) -> None:
    """Refuse folders of a host on which no command could rely.

    Raises:
        ConfigError: one that is not absolute, or an environment that would take worker_root with it when it is made
            again.
    """
    try:
        check_absolute(paths)
    except AnsibleFilterError as error:
        raise ConfigError(f"{host}: {error}") from None
    root, environment = paths.get("worker_root"), paths.get("python_env_path")
    if root and environment and inside(root, environment):
        raise ConfigError(
            f"{host}: python_env_path={environment}: expected a folder of its own, as in {root}/venv: what is in it is replaced "
            "and removed whole"
        )


def _addresses(names: Iterable[str]) -> list[str]:
    """Addresses of hosts, names resolved on this machine.

    Raises:
        ConfigError: a name that does not resolve, or resolves to loopback.
    """
    resolved: list[str] = []
    for name in names:
        try:
            own = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
        except OSError as error:
            raise ConfigError(f"{name} does not resolve on this machine ({error}); set worker_address or ansible_host to one") from None
        if any(map(loopback, own)):
            raise ConfigError(
                f"{name} resolves to {', '.join(own)} on this machine, which no other host can reach; set worker_address to its address"
            )
        resolved += own
    return resolved


def _nothing(names: list[str], requirements: str) -> str:
    tensorflow = "there" if importlib.util.find_spec("tensorflow") else "missing: make setup"
    own = [("install your packages", f"make setup REQUIREMENTS={shlex.quote(requirements)}")] if requirements else []
    commands = [*own, ("look", "ansible-playbook doctor.yml"), ("train", "ansible-playbook train.yml")]
    return (
        f"Nothing to provision: the {len(names)} workers of this inventory are processes of this machine. They train with this project's "
        f".venv (TensorFlow is {tensorflow}) and share a folder below .lockstep.\n\n{text.next_commands(commands)}"
    )
