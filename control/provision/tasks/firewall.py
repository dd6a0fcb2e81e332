"""Check the inventory's settings of the firewall, and warn if there is none."""

import ipaddress
from typing import Any

from control.provision import provision
from control.task import Task
from trainer.errors import ConfigError


def firewall(task: Task) -> dict[str, Any]:
    """Adds to the fact `provision`: `ports`, and `allowed`, the members' and the inventory's further addresses."""
    plan = task.arguments["plan"]
    more = [network(address) for address in task.arguments["allow"]]
    check_users(task.arguments["users"])
    removes = plan["state"] == "absent"
    # What an inventory with a wrong port made must stay removable.
    ports = [] if removes else provision.firewall_ports(plan["members"], plan["kind"])
    shown = {} if plan["firewall"] or removes else {"show": _warning(ports)}
    return {"ansible_facts": {"provision": {**plan, "ports": ports, "allowed": [*plan["addresses"], *more]}}, **shown}


def network(address: Any) -> str:
    """An address or network as given, if it is one."""
    try:
        ipaddress.ip_network(str(address))
    except ValueError as error:
        raise ConfigError(f"firewall_allow: {error}; give addresses or networks, as in 10.0.0.0/24") from None
    return str(address)


def check_users(users: list[Any]) -> None:
    """Refuse users that are not numbers: names are not yet known when the rules are loaded at boot."""
    for user in users:
        if not str(user).isdecimal():
            raise ConfigError(f"firewall_users: {user}: expected a user's number; on the host: id -u {user}")


def _warning(ports: list[str]) -> str:
    return (
        f"warning: no firewall (firewall=false): whoever reaches TCP ports {', '.join(ports)} of the hosts can run code there. "
        "Keep them inside a network that you trust."
    )
