"""Types shared by all checks: their lines, their levels, a run's requirements."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

OK, WARN, FAIL = "OK", "WARN", "FAIL"
Facts = dict[str, dict[str, Any]]
Hosts = list[dict[str, Any]]


@dataclass(frozen=True)
class Check:
    """One line of the doctor's output."""

    level: str
    """OK, WARN (training works, but is slower or at risk) or FAIL (training is impossible)."""
    host: str
    name: str
    value: str
    limit: str = ""
    """The expected value."""
    fix: str = ""
    """Remedy for the user. Commands to type on the host itself begin as `on` writes them."""

    def __post_init__(self) -> None:
        """Clear the fix of a check that is OK."""
        if self.level == OK:
            object.__setattr__(self, "fix", "")


@dataclass(frozen=True)
class Requirement:
    """A run's requirements for every host."""

    memory_mb: int = 900
    server_mb: int = 0
    """Memory of a parameter server, MB."""
    disk_mb: int = 512
    disk_whole_mb: int = 0
    """Disk space, MB, including the snapshots of all epochs."""
    token: tuple[str, str] | None = None
    """Path and SHA-256 of a file that one host just wrote to the shared folder."""
    files: dict[str, str | None] = field(default_factory=dict)
    """Files that every host must read (dataset, code): path to SHA-256, or None if readable is enough."""
    run: str = ""
    """A run that may already hold the port, because it is resumed."""
    queued: bool = False
    """True if the run waits for the end of the runs that occupy the hosts now."""
    inventory: str = "INVENTORY"
    """Inventory for the commands of fixes."""

    @property
    def provision(self) -> str:
        """The command that sets up the hosts."""
        return f"ansible-playbook -i {self.inventory} provision.yml"


@dataclass(frozen=True)
class Subject:
    """A host that answered, as the input of each check of one host."""

    host: dict[str, Any]
    """The host's entry in the plan: name, address, port."""
    facts: dict[str, Any]
    """The result of `host_probe`."""
    need: Requirement = field(default_factory=Requirement)

    def check(self, level: str, name: str, value: str, limit: str = "", fix: str = "") -> Check:
        """A finding on this host."""
        return Check(level, self.host["name"], name, value, limit, fix)

    def on(self, command: str) -> str:
        """A command for the user to type on this host."""
        return on(self.host["name"], command)


def answered(results: Facts) -> Facts:
    """The results of hosts that SSH reached."""
    return {name: result for name, result in results.items() if "unreachable" not in result}


def on(host: str, command: str) -> str:
    """A command for the user to type on that host, after its name."""
    return f"on {host}: {command}"


def odd(values: dict[str, Any]) -> list[tuple[str, Any]]:
    """Keys with an unusual value, each with the usual one: the most frequent, or the first on a tie."""
    if not values:
        return []
    usual = Counter(values.values()).most_common(1)[0][0]
    return [(name, usual) for name, value in values.items() if value != usual]
