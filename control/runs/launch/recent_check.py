"""The checks that hosts passed before the last launch; a launch within minutes on the same hosts does not repeat them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible import context

from control.common import project
from control.common.plan import Plan
from trainer.common.clock import CLOCK, Clock
from trainer.common.files import read_json, write_json
from trainer.rundir.launch_record import Host

LASTS_S = 600.0
"""Seconds for which passed checks count."""


def _file() -> Path:
    return project.PRIVATE / "checked.json"


def _places(hosts: Sequence[Host]) -> list[Any]:
    """The inventory and what a check depends on of each host, except ports, which the launch itself checks again."""
    inventory = [str(source) for source in context.CLIARGS.get("inventory") or ()]
    return [inventory, *sorted([host.name, str(host.address), host.role, host.gpus, host.environment] for host in hosts)]


def note(plan: Plan, text: str, clock: Clock = CLOCK) -> None:
    """Note that the hosts of a plan passed; `text` is what the user saw of it."""
    write_json(_file(), {"at": clock.time(), "places": _places(plan.posts), "needs": plan.needs, "text": text})


def passed(plan: Plan, clock: Clock = CLOCK) -> str | None:
    """The text about checks that a plan's hosts passed recently for as much memory and disk space; None if they are to be checked."""
    try:
        noted = read_json(_file())
        age, needs = clock.time() - noted["at"], noted["needs"]
        enough = all(needs[name] >= wanted for name, wanted in plan.needs.items())
        if not (0 <= age < LASTS_S and enough and noted["places"] == _places(plan.posts)):
            return None
        ago = f"{age / 60:.0f} min" if age >= 60 else f"{age:.0f} s"
        return f"{noted['text']} ({ago} ago)"
    except (OSError, ValueError, TypeError, KeyError):
        return None


def keep_if(well: bool) -> None:
    """Have the next launch check its hosts, unless what was just done on them, a check, a launch or a run, went `well`."""
    if not well:
        _file().unlink(missing_ok=True)
