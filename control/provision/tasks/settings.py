"""The inventory's settings of the distributed file system and the firewall, checked before any host is touched."""

import ipaddress
import re
from typing import Any

from control.common.task import Task
from control.provision.host_rules import inside
from control.runs.hosts import inventory_hosts
from trainer.common.errors import ConfigError
from trainer.common.plain_values import from_plain
from trainer.rundir.launch_record import Host

KINDS = ("glusterfs", "mounted", "local")
LAYOUTS = ("replica", "distributed")
GLUSTER_PORTS = "24007-24008"
BRICK_PORTS = (49152, 49251)
CERTIFICATE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def dfs(task: Task) -> dict[str, Any]:
    """Adds to the fact `provision`: `kind`, and for GlusterFS `volume`."""
    plan = task.arguments["plan"]
    kind = _check_kind(task.arguments, plan["members"])
    folders = {"dfs_path": str(task.arguments["path"]), **({"dfs_brick": str(task.arguments["brick"])} if kind == "glusterfs" else {})}
    # What an older inventory made must stay removable.
    for host, root in task.arguments["roots"].items() if plan["state"] == "present" else ():
        _check_apart(host, str(root), folders)
    wanted = (str(task.arguments["volume"]), str(task.arguments["brick"]), str(task.arguments["layout"]), int(task.arguments["replicas"]))
    volume = _volume(plan["members"], *wanted)
    return {"ansible_facts": {"provision": {**plan, "kind": kind, "volume": volume if kind == "glusterfs" else None}}}


def _check_kind(arguments: dict[str, Any], members: list[dict[str, Any]]) -> str:
    """The kind of the distributed file system, if these hosts can have it."""
    kind = str(arguments["kind"])
    if kind not in KINDS:
        raise ConfigError(f"dfs_kind={kind}: expected one of {', '.join(KINDS)}")
    if not str(arguments["path"]).startswith("/"):
        raise ConfigError(f"dfs_path={arguments['path']}: expected an absolute path, the same on every host")
    if kind == "local" and len(members) > 1:
        raise ConfigError(
            f"dfs_kind=local: {len(members)} hosts can't share a folder of one of them; set dfs_kind to glusterfs (provision.yml makes it) "
            "or mounted (a path that is shared already: NFS, CephFS, Lustre, ...)"
        )
    six = [member for member in members if ":" in str(member["address"])]
    if kind == "glusterfs" and six:
        raise ConfigError(
            f"dfs_kind=glusterfs: {six[0]['name']} has the address {six[0]['address']}; a GlusterFS volume made here takes IPv4 addresses "
            "or names; set worker_address to one, or share a folder in another way (dfs_kind: mounted)"
        )
    unfit = [member["name"] for member in members if not CERTIFICATE_NAME.fullmatch(member["name"])]
    if kind == "glusterfs" and unfit:
        raise ConfigError(
            f"dfs_kind=glusterfs: {unfit[0]!r}: a host's name in the inventory is the one in its certificate: expected up to 64 letters, "
            "digits and . _ -; rename it there"
        )
    return kind


def _volume(hosts: list[dict[str, Any]], name: str, folder: str, layout: str, replicas: int) -> dict[str, Any]:
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


def _check_apart(host: str, root: str, others: dict[str, str]) -> None:
    """Refuse nested folders: the worker's own folder changes owner and is emptied, the shared one is not.

    Raises:
        ConfigError: worker_root is inside one of the others (variable to folder), or the other way round.
    """
    for name, folder in others.items():
        if inside(folder, root) or inside(root, folder):
            raise ConfigError(
                f"{host}: worker_root={root} and {name}={folder}: one must not lie in the other; set one of them to a folder of its own"
            )


def firewall(task: Task) -> dict[str, Any]:
    """Warn if there is none. Adds to the fact `provision`: `ports`, and `allowed`, the members' and the inventory's further addresses."""
    plan = task.arguments["plan"]
    more = [_network(address) for address in task.arguments["allow"]]
    _check_users(task.arguments["users"])
    removes = plan["state"] == "absent"
    # What an inventory with a wrong port made must stay removable.
    ports = [] if removes else _ports(plan["members"], plan["kind"])
    shown = {} if plan["firewall"] or removes else {"show": _warning(ports)}
    return {"ansible_facts": {"provision": {**plan, "ports": ports, "allowed": [*plan["addresses"], *more]}}, **shown}


def _ports(hosts: list[dict[str, Any]], kind: str) -> list[str]:
    """TCP ports that only members may reach: those of every worker, with a parameter server beside it, and those of GlusterFS."""
    numbers = {port for host in hosts for port in inventory_hosts.with_server(from_plain(Host, host)).ports}
    ports = [str(port) for port in sorted(numbers) if port <= inventory_hosts.LAST]
    return [*ports, GLUSTER_PORTS, f"{BRICK_PORTS[0]}-{BRICK_PORTS[1]}"] if kind == "glusterfs" else ports


def _network(address: Any) -> str:
    """An address or network as given, if it is one."""
    try:
        ipaddress.ip_network(str(address))
    except ValueError as error:
        raise ConfigError(f"firewall_allow: {error}; give addresses or networks, as in 10.0.0.0/24") from None
    return str(address)


def _check_users(users: list[Any]) -> None:
    """Refuse users that are not numbers: names are not yet known when the rules are loaded at boot."""
    for user in users:
        if not str(user).isdecimal():
            raise ConfigError(f"firewall_users: {user}: expected a user's number; on the host: id -u {user}")


def _warning(ports: list[str]) -> str:
    return (
        f"warning: no firewall (firewall=false): whoever reaches TCP ports {', '.join(ports)} of the hosts can run code there. "
        "Keep them inside a network that you trust."
    )
