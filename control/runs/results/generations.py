"""The chief of an elastic run, according to its hosts.

After a fault, workers start again as another generation, whose chief may be on another host. No single host decides which is the
chief: the hosts that agree must be enough to go on without the rest.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.common.files import read_json, write_json
from trainer.supervision.restart_policy import may_go_on


def note(folder: Path, host: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Write a mark with the newest generation of a host's worker: a later command sees the records of one host at a time."""
    mark = {"number": record["number"], "chief": (record["hosts"] or [""])[0]}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"generation-{host}", mark)
    return mark


def noted(folder: Path, launched: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Marks that `note` has written for a launch's hosts."""
    return {host: read_json(path) for host in launched if (path := folder / f"generation-{host}").is_file()}


def chief(marked: Mapping[str, Mapping[str, Any]], launched: Sequence[str], workers: int) -> str:
    """Name of the chief's host; empty while it is unclear.

    Args:
        marked: the mark of each host that has one.
        launched: names of the launch's hosts, by rank, its spares last.
        workers: number of hosts that are not spares.
    """
    marks = [(marked[host]["number"], marked[host]["chief"]) if host in marked else (0, "") for host in launched]
    for number, name in sorted({one for one in marks if one[0] > 0}, reverse=True):
        if name in launched and may_go_on([rank for rank, one in enumerate(marks) if one == (number, name)], workers, 1):
            return name
    return launched[0] if all(number <= 1 for number, _ in marks) else ""
