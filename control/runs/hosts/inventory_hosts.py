"""Pure functions from an inventory to a cluster's settings: hosts, thread shares, session names."""

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml
from ansible.errors import AnsibleFilterError

from control.common import project, worker_environment
from control.remote.admission import ANY_HOST
from trainer.common.safe_text import printable
from trainer.network import member
from trainer.parameter_server import roles
from trainer.rundir.launch_record import PORTS, Host, apart, server_endpoints

NAME = re.compile(ANY_HOST)
ADDRESS = re.compile(r"[A-Za-z0-9:][A-Za-z0-9._:%-]{0,252}")
PORT = 12345
"""Default of `worker_port`."""
AUTO = "auto"
"""Value of `worker_port` for a free port, chosen at each launch."""
LAST = 65535
"""The highest port."""
DIRECT = 1000
"""Offset of a worker's direct port from its `worker_port`, unless the inventory sets it."""
SERVER = 500
"""Offset of the port of a host's parameter server."""


@functools.cache
def _worker_defaults() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((project.ROOT / "roles/worker/defaults/main.yml").read_text(encoding="utf-8"))
    return found


def worker_seconds(variables: Mapping[str, Any], name: str) -> float:
    """`worker_silence` or `worker_start_deadline` of a host, from its variables; if these name none, the role's default."""
    return float(variables.get(name, _worker_defaults()[name]))


def _endpoints(host: Host) -> list[str]:
    """All addresses on which a host's worker listens."""
    return [host.endpoint(kind) for kind in PORTS if getattr(host, kind) is not None]


def check_hosts(hosts: Sequence[Host]) -> None:
    """Refuse hosts that can't form a cluster."""
    if not hosts:
        raise AnsibleFilterError("TF_CONFIG: no hosts; put at least one in the inventory's group `workers`")
    for host in hosts:
        _check_host(host)
    twice = [where for where, count in Counter(where for host in hosts for where in _endpoints(host)).items() if count > 1]
    if twice:
        names = ", ".join(host.name for host in hosts if twice[0] in _endpoints(host))
        kinds = "worker_port" if [host.endpoint() for host in hosts].count(twice[0]) > 1 else "worker_port and worker_direct_port"
        raise AnsibleFilterError(f"TF_CONFIG: {names} share {twice[0]}; give each a worker_address or {kinds} of its own")


def _check_host(host: Host) -> None:
    if not host.address:
        raise AnsibleFilterError(f"TF_CONFIG: {host.name} has no address; set ansible_host or worker_address in the inventory")
    for kind in PORTS:
        port: Any = getattr(host, kind)
        if (kind == "port" or port is not None) and (not str(port).isdecimal() or not 0 < int(port) < 65536):
            words, setting = kind.replace("_", " "), "worker_port at most 65035" if kind == "server_port" else f"worker_{kind}"
            raise AnsibleFilterError(f"TF_CONFIG: {host.name}: {words} {port!r} is not a number from 1 to 65535; set {setting}")


def with_server(host: Host) -> Host:
    """A host that also has a parameter server."""
    return replace(host, server_port=int(host.port) + SERVER)


def tf_config(hosts: Sequence[Host], rank: int) -> dict[str, Any]:
    """TF_CONFIG of a host: for its worker or, in a run with parameter servers, for its first process."""
    endpoints, servers = [host.endpoint() for host in hosts], server_endpoints(hosts)
    return roles.of_host(endpoints, servers, apart(hosts), rank) if servers else member.tf_config(endpoints, rank)


def check_absolute(variables: dict[str, str]) -> None:
    """Refuse host paths that do not begin with a slash: `~` and relative paths depend on the user and the tool.

    Args:
        variables: name to value.

    Raises:
        AnsibleFilterError: the first such path.
    """
    for name, value in variables.items():
        if not str(value).startswith("/"):
            raise AnsibleFilterError(f"{name}={printable(value)}: expected an absolute path; write it out, as in {name}: /home/pi/lockstep")
        if not str(value).isprintable() or ".." in str(value).split("/") or "{{" in str(value):
            raise AnsibleFilterError(
                f"{name}={printable(value)}: expected a path without control characters, `..` and braces of a template. Fix: write it out"
            )


def cluster_hosts(hostvars: Any, names: list[str]) -> list[Host]:
    """Inventory hosts, in order. With `worker_port: auto` the port is 0, to be chosen later.

    Raises:
        AnsibleFilterError: `gpus` is not a number, or a port can't be chosen here.
        ConfigError: a forbidden entry in `worker_environment`.
    """
    return [_host(hostvars[name], name) for name in names]


def _check_named(name: str, address: str) -> None:
    """Refuse a host whose name or address could leave a folder, reach a shell, or end a line of a script."""
    if not NAME.fullmatch(name):
        raise AnsibleFilterError(
            f"host {printable(name, 80)!r}: its name becomes a folder of its runs. Fix: in the inventory, name it with A-Z a-z 0-9 . _ - "
            "only, beginning with a letter or digit, and give its address as ansible_host"
        )
    if not ADDRESS.fullmatch(address):
        raise AnsibleFilterError(
            f"worker_address={printable(address, 80)} of {name}: expected an IP address or a name of A-Z a-z 0-9 . _ -. "
            "Fix: set worker_address (or ansible_host) in the inventory"
        )


def _host(variables: Any, name: str) -> Host:
    address = variables.get("worker_address") or variables.get("ansible_host") or name
    _check_named(name, str(address))
    role, environment = variables.get("worker_role", roles.WORKER), variables.get("worker_environment")
    return Host(
        name=name,
        address=address,
        **_ports(variables, name),
        batch_size=variables.get("worker_batch_size"),
        role="" if role == roles.WORKER else role,
        environment=worker_environment.of_host(environment, name) if environment else {},
        gpus=_gpus(variables, name),
    )


def _ports(variables: Any, name: str) -> dict[str, Any]:
    port, direct = variables.get("worker_port", PORT), variables.get("worker_direct_port")
    if port != AUTO:
        return {"port": port, "direct_port": _direct_port(direct, port)}
    if variables.get("ansible_connection") != "local":
        raise AnsibleFilterError(
            f"worker_port={AUTO} of {name}: ports are chosen only for workers of this machine (ansible_connection: local). "
            f"Fix: give the host a number, as in worker_port: {PORT}"
        )
    if direct is not None:
        raise AnsibleFilterError(
            f"worker_direct_port={direct} of {name}: with worker_port={AUTO} both are chosen. Fix: leave it out, or give both a number"
        )
    return {"port": 0, "direct_port": 0, "port_chosen": True}


def _direct_port(given: Any, port: Any) -> Any:
    """A port that is not a number passes through; `check_hosts` refuses it."""
    return given if given is not None else int(port) + DIRECT if str(port).isdecimal() else port


def _gpus(variables: Any, name: str) -> int:
    text = str(variables.get("gpus", 0))
    if not text.isdecimal():
        raise AnsibleFilterError(f"gpus={text} of {name}: expected the number of GPUs its worker trains on, a whole number from 0")
    return int(text)


def rank(hosts: list[dict[str, Any]], name: str) -> int:
    """Index of a host among the hosts that train, from 0."""
    return [host["name"] for host in hosts].index(name)


def reached_hosts(hosts: list[dict[str, Any]], results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The hosts that SSH reached according to a task's results, in order."""
    return [host for host in hosts if not results.get(host["name"], {}).get("unreachable")]


def thread_share(hosts: Sequence[Host], name: str, cores: int) -> int:
    """Threads for one worker: the machine's cores divided by the workers on its address, at least 1."""
    address = next(host.address for host in hosts if host.name == name)
    return max(1, int(cores) // sum(host.address == address for host in hosts))


def gpu_share(hosts: Sequence[Host], name: str) -> str:
    """CUDA_VISIBLE_DEVICES of one worker: its GPUs, numbered after those of earlier workers on its address; empty without GPUs."""
    place = [host.name for host in hosts].index(name)
    first = sum(host.gpus for host in hosts[:place] if host.address == hosts[place].address)
    return ",".join(str(number) for number in range(first, first + hosts[place].gpus))
