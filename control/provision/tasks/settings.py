"""The inventory's settings of the distributed file system and the firewall, checked before any host is touched."""

import ipaddress
import re
from typing import Any

from control.common.task import Task
from control.provision import host_rules
from trainer.common.errors import ConfigError

CERTIFICATE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def dfs(task: Task) -> dict[str, Any]:
    """Adds to the fact `provision`: `kind`, and for GlusterFS `volume`."""
    plan = task.arguments["plan"]
    kind = _check_kind(task.arguments, plan["members"])
    folders = {"dfs_path": str(task.arguments["path"]), **({"dfs_brick": str(task.arguments["brick"])} if kind == "glusterfs" else {})}
    # What an older inventory made must stay removable.
    for host, root in task.arguments["roots"].items() if plan["state"] == "present" else ():
        host_rules.check_apart(host, str(root), folders)
    wanted = (
        str(task.arguments["volume"]),
        str(task.arguments["brick"]),
        str(task.arguments["layout"]),
        int(task.arguments["replicas"]),
    )
    volume = host_rules.dfs_volume(plan["members"], *wanted)
    return {"ansible_facts": {"provision": {**plan, "kind": kind, "volume": volume if kind == "glusterfs" else None}}}


def _check_kind(arguments: dict[str, Any], members: list[dict[str, Any]]) -> str:
    """The kind of the distributed file system, if these hosts can have it."""
    kind = str(arguments["kind"])
    if kind not in host_rules.KINDS:
        raise ConfigError(f"dfs_kind={kind}: expected one of {', '.join(host_rules.KINDS)}")
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


def firewall(task: Task) -> dict[str, Any]:
    """Warn if there is none. Adds to the fact `provision`: `ports`, and `allowed`, the members' and the inventory's further addresses."""
    plan = task.arguments["plan"]
    more = [_network(address) for address in task.arguments["allow"]]
    _check_users(task.arguments["users"])
    removes = plan["state"] == "absent"
    # What an inventory with a wrong port made must stay removable.
    ports = [] if removes else host_rules.firewall_ports(plan["members"], plan["kind"])
    shown = {} if plan["firewall"] or removes else {"show": _warning(ports)}
    return {"ansible_facts": {"provision": {**plan, "ports": ports, "allowed": [*plan["addresses"], *more]}}, **shown}


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
