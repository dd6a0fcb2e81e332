"""Check what the inventory says of the firewall, and warn where there is to be none."""

import ipaddress
from typing import Any

from plugins.filter import provision
from plugins.shared import control
from trainer.errors import ConfigError


class ActionModule(control.ControlAction):
    """Adds the inventory's further addresses to those in the fact `provision`."""

    def act(self) -> dict[str, Any]:
        """Refuse, warn."""
        plan = self.arguments["plan"]
        more = [network(address) for address in self.arguments["allow"]]
        shown = {} if plan["firewall"] or plan["state"] == "absent" else {"show": _warning(plan["members"], plan["kind"])}
        return {"ansible_facts": {"provision": {**plan, "allowed": [*plan["addresses"], *more]}}, **shown}


def network(address: Any) -> str:
    """An address or network as it was given, when it is one."""
    try:
        ipaddress.ip_network(str(address))
    except ValueError as error:
        raise ConfigError(f"firewall_allow: {error}; give addresses or networks, as in 10.0.0.0/24") from None
    return str(address)


def _warning(members: list[dict[str, Any]], kind: str) -> str:
    ports = ", ".join(provision.firewall_ports(members, kind))
    return (
        f"warning: no firewall (firewall=false): whoever reaches TCP ports {ports} of the hosts can run code there. "
        "Keep them inside a network that you trust."
    )
