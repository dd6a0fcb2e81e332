"""Names of hosts in records."""

from collections.abc import Sequence
from typing import Any


def label(host: dict[str, Any]) -> str:
    """Name and address of a host, for records that outlive an inventory: two inventories may both have a node01."""
    return f"{host['name']} {host['address']}"


def label_names(labels: list[str]) -> list[str]:
    """The host names in the results of `label`."""
    return [one.split()[0] for one in labels]


def on_one_machine(labels: Sequence[str]) -> bool:
    """Return whether several hosts, as results of `label`, are workers on one machine: they compete for its cores."""
    return len(labels) > 1 and all(one.rpartition(" ")[2].startswith("127.") for one in labels)
