"""Pure functions from an inventory to what a cluster needs: TF_CONFIG, thread shares, session names."""

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

from trainer.rundir import recorded

ROLES = ("chief", "worker", "ps", "evaluator")


def tf_config(hosts: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """TF_CONFIG of one host, as TensorFlow's `TFConfigClusterResolver` reads it.

    Args:
        hosts: the hosts that train, in order of rank: `name`, `address`, `port`, and optionally
            `role` (`worker` by default; also `chief`, `ps`, `evaluator`).
        name: the host whose TF_CONFIG is wanted.

    Raises:
        AnsibleFilterError: a host without an address or port, two hosts with one address and
            port, an unknown role, more than one chief, or a name that is not among the hosts.
    """
    check_hosts(hosts)
    members: dict[str, list[dict[str, Any]]] = {}
    for host in hosts:
        members.setdefault(host.get("role", "worker"), []).append(host)
    cluster = {role: [place(host) for host in members[role]] for role in ROLES if role in members and role != "evaluator"}
    for role, those in members.items():
        for index, host in enumerate(those):
            if host["name"] == name:
                return {"cluster": cluster, "task": {"type": role, "index": index}}
    raise AnsibleFilterError(f"TF_CONFIG: {name} is not among the hosts that train: {', '.join(host['name'] for host in hosts)}")


def place(host: dict[str, Any]) -> str:
    """`address:port`; IPv6 addresses in brackets."""
    address = str(host["address"])
    return f"[{address}]:{host['port']}" if ":" in address else f"{address}:{host['port']}"


def check_hosts(hosts: list[dict[str, Any]]) -> None:
    """Refuse hosts that can't form a cluster."""
    if not hosts:
        raise AnsibleFilterError("TF_CONFIG: no hosts; put at least one in the inventory's group `workers`")
    for host in hosts:
        _check_host(host)
    twice = [where for where, count in Counter(place(host) for host in hosts).items() if count > 1]
    if twice:
        names = ", ".join(host["name"] for host in hosts if place(host) == twice[0])
        raise AnsibleFilterError(f"TF_CONFIG: {names} share {twice[0]}; give each a worker_address or worker_port of its own")
    if sum(host.get("role") == "chief" for host in hosts) > 1:
        raise AnsibleFilterError("TF_CONFIG: more than one host has the role chief; a cluster has one")


def _check_host(host: dict[str, Any]) -> None:
    if not host.get("address"):
        raise AnsibleFilterError(f"TF_CONFIG: {host['name']} has no address; set ansible_host or worker_address in the inventory")
    if not str(host.get("port", "")).isdecimal() or not 0 < int(host["port"]) < 65536:
        raise AnsibleFilterError(f"TF_CONFIG: {host['name']}: port {host.get('port')!r} is not a number from 1 to 65535; set worker_port")
    if host.get("role", "worker") not in ROLES:
        raise AnsibleFilterError(f"TF_CONFIG: {host['name']}: role {host['role']!r} is unknown; it must be one of: {', '.join(ROLES)}")


def check_absolute(variables: dict[str, str]) -> None:
    """Refuse paths on hosts that do not begin with a slash: `~` and relative ones are another folder for every user and tool.

    Args:
        variables: name to value.

    Raises:
        AnsibleFilterError: the first such path.
    """
    for name, value in variables.items():
        if not str(value).startswith("/"):
            raise AnsibleFilterError(f"{name}={value}: expected an absolute path; write it out, as in {name}: /home/pi/lockstep")


def cluster_hosts(hostvars: Any, names: list[str]) -> list[dict[str, Any]]:
    """`name`, `address`, `port` (and `role`, `batch_size`, `gpus`) of inventory hosts, in the order given.

    Raises:
        AnsibleFilterError: `gpus` is no number.
    """
    return [_host(hostvars[name], name) for name in names]


def _host(variables: Any, name: str) -> dict[str, Any]:
    address = variables.get("worker_address") or variables.get("ansible_host") or name
    host = {"name": name, "address": address, "port": variables.get("worker_port", 12345)}
    if variables.get("worker_batch_size") is not None:
        host["batch_size"] = variables["worker_batch_size"]
    if variables.get("worker_role"):
        host["role"] = variables["worker_role"]
    if _gpus(variables, name):
        host["gpus"] = _gpus(variables, name)
    return host


def _gpus(variables: Any, name: str) -> int:
    text = str(variables.get("gpus", 0))
    if not text.isdecimal():
        raise AnsibleFilterError(f"gpus={text} of {name}: expected how many GPUs its worker trains on, a whole number from 0")
    return int(text)


def rank(hosts: list[dict[str, Any]], name: str) -> int:
    """Place of a host among those that train, from 0."""
    return [host["name"] for host in hosts].index(name)


def reached_hosts(hosts: list[dict[str, Any]], results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The hosts of which a task's results say that SSH reached them, in order."""
    return [host for host in hosts if not results.get(host["name"], {}).get("unreachable")]


def thread_share(hosts: list[dict[str, Any]], name: str, cores: int) -> int:
    """Threads for one worker: the machine's cores over the workers that run on its address, at least 1."""
    address = next(host["address"] for host in hosts if host["name"] == name)
    return max(1, int(cores) // sum(host["address"] == address for host in hosts))


def gpu_share(hosts: list[dict[str, Any]], name: str) -> str:
    """CUDA_VISIBLE_DEVICES of one worker: so many as it has, after those of workers before it on its address; empty for none."""
    own = next(host for host in hosts if host["name"] == name)
    before = hosts[: hosts.index(own)]
    first = sum(host.get("gpus", 0) for host in before if host["address"] == own["address"])
    return ",".join(str(number) for number in range(first, first + own.get("gpus", 0)))


def session_name(run: str, rank_number: int, root: str = "") -> str:
    """Name of a worker's tmux session.

    tmux does not allow `.`; `+` can't be in a run's name. A digest of the worker's directory keeps
    two projects of one user apart.
    """
    return f"{run.replace('.', '+')}-w{rank_number}" + (f"-{place_digest(root)}" if root else "")


def launched_at(folder: str) -> float:
    """When the run of a directory on the control node was launched last, in seconds since 1970; 0 before the first time."""
    return float(recorded(Path(folder)).get("launched_at", 0))


def place_digest(path: str) -> str:
    """Six hex digits of a directory's name, to tell two projects of one user apart."""
    return hashlib.sha256(path.encode()).hexdigest()[:6]


class FilterModule:
    """Filters for playbooks and templates."""

    def filters(self) -> dict[str, Any]:
        """Name to function."""
        return {
            "tf_config": tf_config,
            "cluster_hosts": cluster_hosts,
            "cluster_rank": rank,
            "thread_share": thread_share,
            "gpu_share": gpu_share,
            "reached_hosts": reached_hosts,
            "session_name": session_name,
            "launched_at": launched_at,
        }
