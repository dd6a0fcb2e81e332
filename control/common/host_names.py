"""Names made from a host: of its tmux session, of its address in records."""

import hashlib
from collections.abc import Sequence
from typing import Any


def session_name(run: str, rank_number: int, root: str = "") -> str:
    """Name of a worker's tmux session.

    tmux does not allow `.`; `+` can't occur in a run's name. A digest of the worker's directory separates two projects of one user.
    """
    return f"{run.replace('.', '+')}-w{rank_number}" + (f"-{path_digest(root)}" if root else "")


def label(host: dict[str, Any]) -> str:
    """Name and address of a host, for records that outlive an inventory: two inventories may both have a node01."""
    return f"{host['name']} {host['address']}"


def label_names(labels: list[str]) -> list[str]:
    """The host names in the results of `label`."""
    return [one.split()[0] for one in labels]


def on_one_machine(labels: Sequence[str]) -> bool:
    """Return whether several hosts, as results of `label`, are workers on one machine: they compete for its cores."""
    return len(labels) > 1 and all(one.rpartition(" ")[2].startswith("127.") for one in labels)


def path_digest(path: str) -> str:
    """Six hex digits of a directory's name, to separate two projects of one user."""
    return hashlib.sha256(path.encode()).hexdigest()[:6]
