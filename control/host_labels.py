"""Host names in files that outlive an inventory."""

from collections.abc import Sequence
from typing import Any


def place(host: dict[str, Any]) -> str:
    """Name and address of a host for records: two inventories may both have a node01."""
    return f"{host['name']} {host['address']}"


def host_names(places: list[str]) -> list[str]:
    """The names in the results of `place`."""
    return [place.split()[0] for place in places]


def on_one_machine(places: Sequence[str]) -> bool:
    """Whether several hosts, as results of `place`, are workers on one machine: they take each other's cores."""
    return len(places) > 1 and all(place.rpartition(" ")[2].startswith("127.") for place in places)
