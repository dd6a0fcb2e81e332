"""Names of hosts in records."""

from collections.abc import Sequence


def label_names(labels: list[str]) -> list[str]:
    """The host names in the results of `Host.label`."""
    return [one.split()[0] for one in labels]


def on_one_machine(labels: Sequence[str]) -> bool:
    """Return whether several hosts, as results of `Host.label`, are workers on one machine: they compete for its cores."""
    return len(labels) > 1 and all(one.rpartition(" ")[2].startswith("127.") for one in labels)
