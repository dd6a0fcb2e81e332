"""Check the options of `provision.yml` and the inventory, before any host is touched."""

import importlib.util
import secrets
import shlex
import socket
from collections.abc import Iterable
from typing import Any

from ansible.errors import AnsibleFilterError

from control.common import command_line, text
from control.common.operator_variables import boolean, check_state
from control.common.task import Task
from control.doctor.checks.host import loopback
from control.provision import host_rules
from control.runs.hosts.inventory_hosts import check_absolute, cluster_hosts
from trainer.common.errors import ConfigError
from trainer.rundir.launch_record import host_facts

PATHS = ("worker_root", "python_env_path", "dfs_brick", "worker_caches")


def plan(task: Task) -> dict[str, Any]:
    """Refuse what can be refused without a host. Returns the fact `provision`: state, firewall, the members with their addresses."""
    options = command_line.operator_options("provision", task.task_vars)
    names, hostvars = task.task_vars["groups"].get("workers", []), task.task_vars["hostvars"]
    members = host_facts(cluster_hosts(hostvars, names))
    state, firewall = check_state(options), boolean("firewall", options.get("firewall", True))
    here = bool(names) and all(hostvars[name].get("ansible_connection") == "local" for name in names)
    planned = {
        "state": "nothing" if here else state,
        "firewall": firewall,
        "members": members,
        "addresses": [],
        "kind": "",
        "token": secrets.token_hex(8),
    }
    if here:
        return {"ansible_facts": {"provision": planned}, "show_last": _nothing(names, str(options.get("requirements", "")))}
    host_rules.check_members(members)
    if state == "present":
        host_rules.check_workers(members)
    for name in names:
        _check_paths(name, {path: str(hostvars[name][path]) for path in PATHS if path in hostvars[name]})
    planned["addresses"] = _addresses(str(member["address"]) for member in members)
    return {"ansible_facts": {"provision": planned}}


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
    if root and environment and host_rules.inside(root, environment):
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
