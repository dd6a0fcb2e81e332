"""Pure functions for provisioning: bricks of the distributed file system, packages, the firewall's rules."""

import ipaddress
import posixpath
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding

from control.runs.hosts import inventory_hosts
from trainer.common.errors import ConfigError
from trainer.rundir.launch_record import Host

KINDS = ("glusterfs", "mounted", "local")
LAYOUTS = ("replica", "distributed")
GLUSTER_PORTS = "24007-24008"
BRICK_PORTS = (49152, 49251)


def dfs_volume(hosts: list[dict[str, Any]], name: str, folder: str, layout: str, replicas: int) -> dict[str, Any]:
    """How hosts serve and mount a GlusterFS volume.

    A replicated volume takes whole sets of `replicas` hosts, the first ones of the inventory. With fewer hosts than one set, and in the
    layout `distributed`, every host stores a share of the files.

    Args:
        hosts: the members, in inventory order.
        name: of the volume.
        folder: of a server's share.
        layout: one of LAYOUTS.
        replicas: servers that store every file of a replicated volume.

    Returns:
        `servers` (names), `bricks` (`address:folder` of each), `replica` (0: files are stored once), and `hosts`: by name `address`,
        `packages` (Debian's), `source` (the volume to mount: its own if it is a server, otherwise the first server's) and `backups`
        (servers to ask if that one is down).

    Raises:
        ConfigError: an unknown layout, or fewer than two replicas.
    """
    if layout not in LAYOUTS:
        raise ConfigError(f"dfs_layout={layout}: expected one of {', '.join(LAYOUTS)}")
    if replicas < 2:
        raise ConfigError(f"dfs_replicas={replicas}: a replicated volume keeps every file at least twice; set 2 or 3")
    replicated = layout == "replica" and len(hosts) >= replicas
    servers = hosts[: len(hosts) // replicas * replicas] if replicated else hosts
    mounts = {}
    for host in hosts:
        # sorted() is stable: the host itself first, then inventory order.
        first, *others = (str(server["address"]) for server in sorted(servers, key=lambda server: server["name"] != host["name"]))
        package = "glusterfs-server" if host in servers else "glusterfs-client"
        mounts[host["name"]] = {
            "address": str(host["address"]),
            "packages": [package, "openssl"],
            "source": f"{first}:/{name}",
            "backups": others[:2],
        }
    return {
        "servers": [server["name"] for server in servers],
        "bricks": [f"{server['address']}:{folder}" for server in servers],
        "replica": replicas if replicated else 0,
        "hosts": mounts,
    }


def dfs_trusted(certificates: Mapping[str, str]) -> str:
    """The certificates that every member trusts, each after a line with its host's name.

    Args:
        certificates: each host's own, by name; empty if check mode made none.

    Raises:
        ConfigError: one that could speak for another host.
    """
    return "".join(f"# {host}\n{_own_certificate(host, text)}" for host, text in certificates.items() if text)


def _own_certificate(host: str, text: str) -> str:
    """The one certificate in a text, re-encoded: nothing else that a host may have added reaches the others."""
    try:
        (certificate,) = x509.load_pem_x509_certificates(text.encode())
        certificate.verify_directly_issued_by(certificate)
        signs = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise ConfigError(f"{host}: what it returned is no certificate of its own ({error}); remove /etc/ssl/glusterfs.pem there") from None
    if certificate.subject.rfc4514_string() != f"CN={host}" or signs:
        shown = f"{certificate.subject.rfc4514_string()}{', which signs others' if signs else ''}"
        raise ConfigError(f"{host}: its certificate is for {shown!r}; expected 'CN={host}': remove /etc/ssl/glusterfs.pem there")
    return certificate.public_bytes(Encoding.PEM).decode()


def firewall_ports(hosts: list[dict[str, Any]], kind: str) -> list[str]:
    """TCP ports that only members may reach: those of every worker, with a parameter server beside it, and those of GlusterFS."""
    numbers = {port for host in hosts for port in inventory_hosts.with_server(Host.of(host)).ports}
    ports = [str(port) for port in sorted(numbers) if port <= inventory_hosts.LAST]
    return [*ports, GLUSTER_PORTS, f"{BRICK_PORTS[0]}-{BRICK_PORTS[1]}"] if kind == "glusterfs" else ports


def firewall_rules(provision: Mapping[str, Any], table: str, users: Iterable[Any]) -> str:
    """A file for `nft -f` that replaces our table, and touches nothing else.

    Only packets that open a connection to the given ports are judged: answers to connections that the host itself
    made from such a port pass. Incoming packets are judged by address. Outgoing ones, to this host or another
    member, are judged by user, since all local users share a member's address.

    Args:
        provision: the plan, with the IPv4 and IPv6 addresses or networks of the members, `allowed`, and TCP `ports` and ranges.
        table: name of the table (family `inet`).
        users: uids that may open such connections; root (GlusterFS) always may.
    """
    networks = sorted({ipaddress.ip_network(address) for address in provision["allowed"]}, key=lambda one: (one.version, one))
    four, six = ([str(one).removesuffix("/32").removesuffix("/128") for one in networks if one.version == version] for version in (4, 6))
    opens = f"tcp flags & (fin | syn | rst | ack) == syn tcp dport {{ {', '.join(provision['ports'])} }}"
    numbers = ", ".join(str(number) for number in sorted({0, *map(int, users)}))
    return f"""# Made by Lockstep; changes are lost. Worker ports run code for whoever reaches them.
table inet {table}
delete table inet {table}
table inet {table} {{
{_set("members4", "ipv4_addr", four)}{_set("members6", "ipv6_addr", six)}  chain input {{
    type filter hook input priority -10; policy accept;
    iif "lo" accept
    {opens} jump strangers
  }}
  chain strangers {{
    ip saddr @members4 return
    ip6 saddr @members6 return
    counter drop
  }}
  chain output {{
    type filter hook output priority -10; policy accept;
    {opens} jump other_users
  }}
  chain other_users {{
    meta skuid {{ {numbers} }} return
    oif "lo" counter reject with tcp reset
    ip daddr @members4 counter reject with tcp reset
    ip6 daddr @members6 counter reject with tcp reset
  }}
}}
"""


def _set(name: str, kind: str, elements: list[str]) -> str:
    inside = f"    elements = {{ {', '.join(elements)} }}\n" if elements else ""
    return f"  set {name} {{\n    type {kind}\n    flags interval\n    auto-merge\n{inside}  }}\n"


def check_members(hosts: list[dict[str, Any]]) -> None:
    """Refuse hosts that would be provisioned twice.

    Raises:
        ConfigError: no hosts, or two hosts with the same address.
    """
    if not hosts:
        raise ConfigError("no hosts; put at least one in the inventory's group `workers`")
    twice = [address for address, count in Counter(str(host["address"]) for host in hosts).items() if count > 1]
    if twice:
        names = ", ".join(host["name"] for host in hosts if str(host["address"]) == twice[0])
        raise ConfigError(
            f"{names} have one address, {twice[0]}; every host needs its own: fix ansible_host or worker_address in the inventory"
        )


def check_workers(hosts: list[dict[str, Any]]) -> None:
    """Refuse a port that no worker can have: the firewall's rules are made of these ports. Ports still to be chosen are left out.

    Raises:
        AnsibleFilterError: the first one.
    """
    for host in hosts:
        if "port_chosen" not in host:
            inventory_hosts.check_hosts([Host.of(host)])


def check_apart(host: str, root: str, others: dict[str, str]) -> None:
    """Refuse nested folders: the worker's own folder changes owner and is emptied, the shared one is not.

    Raises:
        ConfigError: worker_root is inside one of the others (variable to folder), or the other way round.
    """
    for name, folder in others.items():
        if inside(folder, root) or inside(root, folder):
            raise ConfigError(
                f"{host}: worker_root={root} and {name}={folder}: one must not lie in the other; set one of them to a folder of its own"
            )


def inside(path: str, folder: str) -> bool:
    """Return whether a path is a folder or inside that folder; both absolute."""
    return PurePosixPath(posixpath.normpath(path)).is_relative_to(posixpath.normpath(folder))
