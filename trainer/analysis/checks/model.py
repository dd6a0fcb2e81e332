"""What all checks share: their lines, their levels, what a run needs."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

OK, WARN, FAIL = "OK", "WARN", "FAIL"
Facts = dict[str, dict[str, Any]]
Hosts = list[dict[str, Any]]


@dataclass(frozen=True)
class Check:
    """One line of the doctor."""

    level: str
    """OK, WARN (trains, but slower or at a risk) or FAIL (can't train)."""
    host: str
    name: str
    value: str
    """What was found."""
    limit: str = ""
    """What it should be."""
    mend: str = ""
    """What a person can do; commands to type on the host itself begin as `on` writes it."""


@dataclass(frozen=True)
class Requirement:
    """What a run needs of every host."""

    memory_mb: int = 900
    disk_mb: int = 512
    disk_whole_mb: int = 0
    """With the snapshots of all epochs."""
    python: tuple[tuple[int, int], tuple[int, int]] = ((3, 11), (3, 13))
    token: tuple[str, str] | None = None
    """Path and SHA-256 of a file that one host wrote to the shared folder just now."""
    files: dict[str, str | None] = field(default_factory=dict)
    """Files that every host must read (dataset, code): path to SHA-256, or None when readable is enough."""
    run: str = ""
    """A run that may hold the port already, because it is continued."""
    inventory: str = "INVENTORY"
    """For the commands in mends."""


def on(host: str, command: str) -> str:
    """A command that a person types on that host, after its name."""
    return f"on {host}: {command}"


def grade(found: float, needed: float, enough: float) -> str:
    """The level of an amount of which less than `needed` fails and less than `enough` warns."""
    return FAIL if found < needed else WARN if found < enough else OK


def odd(values: dict[str, Any]) -> list[tuple[str, Any]]:
    """Keys whose value is not the usual one, each with the usual one: the most frequent, of several the first."""
    if not values:
        return []
    usual = Counter(values.values()).most_common(1)[0][0]
    return [(name, usual) for name, value in values.items() if value != usual]
