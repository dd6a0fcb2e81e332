"""Pure functions for provisioning: bricks of the distributed file system, packages, the firewall's rules."""

import ipaddress
import posixpath
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

from trainer.errors import ConfigError

KINDS = ("glusterfs", "mounted", "local")
LAYOUTS = ("replica", "distributed")
GLUSTER_PORTS = "24007-24008"
BRICK_PORTS = (49152, 49251)


def dfs_servers(hosts: list[dict[str, Any]], layout: str = "replica", replicas: int = 3) -> list[dict[str, Any]]:
    """The hosts that hold the files of a GlusterFS volume, in inventory order.

    A replicated volume takes whole sets of `replicas` hosts; with fewer hosts than one set, and in
    the layout `distributed`, every host holds a share of the files.

    Raises:
        ConfigError: an unknown layout, or fewer than two replicas.
    """
    if layout not in LAYOUTS:
        raise ConfigError(f"dfs_layout={layout}: expected one of {', '.join(LAYOUTS)}")
    if int(replicas) < 2:
        raise ConfigError(f"dfs_replicas={replicas}: a replicated volume keeps every file at least twice; set 2 or 3")
    return hosts[: len(hosts) // int(replicas) * int(replicas)] if replicated(hosts, layout, replicas) else hosts


def replicated(hosts: list[dict[str, Any]], layout: str = "replica", replicas: int = 3) -> bool:
    """Whether the volume keeps every file on several hosts."""
    return layout == "replica" and len(hosts) >= int(replicas)


def dfs_bricks(hosts: list[dict[str, Any]], folder: str, layout: str = "replica", replicas: int = 3) -> list[str]:
    """`address:folder` of every server."""
    return [f"{host['address']}:{folder}" for host in dfs_servers(hosts, layout, replicas)]


def dfs_source(hosts: list[dict[str, Any]], name: str, volume: str, layout: str = "replica", replicas: int = 3) -> str:
    """What a host mounts: the volume of itself when it is a server, else of the first server."""
    return f"{_server_order(hosts, name, layout, replicas)[0]}:/{volume}"


def dfs_backups(hosts: list[dict[str, Any]], name: str, layout: str = "replica", replicas: int = 3) -> list[str]:
    """Servers that a host asks for the volume when the first one is down."""
    return _server_order(hosts, name, layout, replicas)[1:3]


def _server_order(hosts: list[dict[str, Any]], name: str, layout: str, replicas: int) -> list[str]:
    servers = dfs_servers(hosts, layout, replicas)
    # sorted() is stable: the host itself first, then inventory order.
    return [str(host["address"]) for host in sorted(servers, key=lambda host: host["name"] != name)]


def dfs_packages(hosts: list[dict[str, Any]], name: str, kind: str, layout: str = "replica", replicas: int = 3) -> list[str]:
    """Debian packages that a host needs for the distributed file system."""
    if kind != "glusterfs":
        return []
    serves = name in [host["name"] for host in dfs_servers(hosts, layout, replicas)]
    return ["glusterfs-server" if serves else "glusterfs-client"]


def firewall_ports(hosts: list[dict[str, Any]], kind: str) -> list[str]:
    """TCP ports that only members may reach: every worker's, and those of GlusterFS."""
    ports = [str(port) for port in sorted({int(host["port"]) for host in hosts})]
    return [*ports, GLUSTER_PORTS, f"{BRICK_PORTS[0]}-{BRICK_PORTS[1]}"] if kind == "glusterfs" else ports


def firewall_rules(addresses: Iterable[str], ports: Iterable[str], table: str = "lockstep") -> str:
    """A file for `nft -f` that replaces our table, and touches nothing else.

    Only packets that open a connection are judged, and only those to the given ports: answers to
    connections that the host itself made from such a port pass.

    Args:
        addresses: IPv4 and IPv6 addresses or networks of the members.
        ports: TCP ports and ranges.
        table: name of the table (family `inet`).
    """
    networks = sorted({ipaddress.ip_network(address) for address in addresses}, key=lambda one: (one.version, one))
    four, six = ([str(one).removesuffix("/32").removesuffix("/128") for one in networks if one.version == version] for version in (4, 6))
    return f"""# Made by Lockstep; changes are lost. Worker ports run code for whoever reaches them.
table inet {table}
delete table inet {table}
table inet {table} {{
{_set("members4", "ipv4_addr", four)}{_set("members6", "ipv6_addr", six)}  chain input {{
    type filter hook input priority -10; policy accept;
    iif "lo" accept
    tcp flags & (fin | syn | rst | ack) == syn tcp dport {{ {", ".join(ports)} }} jump strangers
  }}
  chain strangers {{
    ip saddr @members4 return
    ip6 saddr @members6 return
    counter drop
  }}
}}
"""


def _set(name: str, kind: str, elements: list[str]) -> str:
    inside = f"    elements = {{ {', '.join(elements)} }}\n" if elements else ""
    return f"  set {name} {{\n    type {kind}\n    flags interval\n    auto-merge\n{inside}  }}\n"


def check_members(hosts: list[dict[str, Any]]) -> None:
    """Refuse hosts that would be provisioned twice.

    Raises:
        ConfigError: no hosts, or two hosts with one address.
    """
    if not hosts:
        raise ConfigError("no hosts; put at least one in the inventory's group `workers`")
    twice = [address for address, count in Counter(str(host["address"]) for host in hosts).items() if count > 1]
    if twice:
        names = ", ".join(host["name"] for host in hosts if str(host["address"]) == twice[0])
        raise ConfigError(
            f"{names} have one address, {twice[0]}; every host needs its own: mend ansible_host or worker_address in the inventory"
        )


def check_apart(place: str, root: str, others: dict[str, str]) -> None:
    """Refuse folders inside one another: the worker's own folder is given away and emptied, the shared one is not.

    Args:
        place: name of the host.
        root: its worker_root.
        others: name of a variable to the folder that it names.

    Raises:
        ConfigError: one lies in the other.
    """
    for name, folder in others.items():
        if inside(folder, root) or inside(root, folder):
            raise ConfigError(
                f"{place}: worker_root={root} and {name}={folder}: one must not lie in the other; set one of them to a folder of its own"
            )


def inside(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies in it; both absolute."""
    return PurePosixPath(posixpath.normpath(path)).is_relative_to(posixpath.normpath(folder))


class FilterModule:
    """Filters for playbooks and templates."""

    def filters(self) -> dict[str, Any]:
        """Name to function."""
        return {
            "dfs_servers": dfs_servers,
            "dfs_replicated": replicated,
            "dfs_bricks": dfs_bricks,
            "dfs_source": dfs_source,
            "dfs_backups": dfs_backups,
            "dfs_packages": dfs_packages,
            "firewall_ports": firewall_ports,
            "firewall_rules": firewall_rules,
        }
