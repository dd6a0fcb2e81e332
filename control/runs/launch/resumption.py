"""The training state from which a run resumes: the newest intact one, on its hosts or on this machine."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.host import sealed_files


@dataclass
class Resumption:
    """Files to send to the hosts, and lines to show to the user."""

    give: dict[str, list[str]]
    """Files and folders of the run directory that a host lacks, by host."""
    lines: list[str] = field(default_factory=list)
    """One line per damaged file that is newer than the state in use."""


def choose(folder: Path, claims: dict[str, dict[str, Any]]) -> Resumption:
    """Compare the hosts' states with the collected ones, and put damaged collected files aside.

    Args:
        folder: the run directory on this machine.
        claims: results of `worker_claim`, by host in order of rank.
    """
    chosen = Resumption({host: [] for host in claims})
    _state(chosen, folder, claims)
    for host, claim in claims.items():
        _memory(chosen, folder, host, claim)
    return chosen


def _state(chosen: Resumption, folder: Path, claims: dict[str, dict[str, Any]]) -> None:
    """Choose the state: the workers agree on the newest one that any of them has; the chief gets this machine's if that is newer."""
    chief, holder = next(iter(claims)), max(claims, key=lambda host: sealed_files.step_of(claims[host]["newest_state"]))
    here, broken = _newer(folder / "state", claims[holder]["newest_state"])
    if here:
        chosen.give[chief] += [name for name in ("state", "history.csv") if (folder / name).exists()]
    step, where = (sealed_files.step_of(here), "this machine") if here else (sealed_files.step_of(claims[holder]["newest_state"]), holder)
    going = f"continuing from step {step:,} of {where}" if step >= 0 else "no other is left: continuing from the start"
    damaged = [line for host, claim in claims.items() for line in _damaged("state", host, claim)]
    chosen.lines += [f"state of {line}; {going}" for line in [*damaged, *_put_aside("this machine", broken)]]


def _memory(chosen: Resumption, folder: Path, host: str, claim: dict[str, Any]) -> None:
    name = f"workers/{host}/memory"
    here, broken = _newer(folder / name, claim["newest_memory"])
    if here:
        chosen.give[host].append(name)
    damaged = [*_damaged("memory", host, claim), *_put_aside("this machine", broken)]
    chosen.lines += [f"{host}'s part of the state of {line}" for line in damaged]


def _damaged(kind: str, host: str, claim: dict[str, Any]) -> list[str]:
    """Lines on damaged files of a kind that a host put aside, one per file."""
    return _put_aside(host, {one["name"]: one["reason"] for one in claim["damaged"] if one["kind"] == kind})


def _put_aside(owner: str, files: dict[str, str]) -> list[str]:
    """Put files aside; one line per file, by name, with the reason."""
    return [f"step {sealed_files.step_of(name):,} on {owner} is damaged ({reason}) and put aside" for name, reason in files.items()]


def _newer(folder: Path, than: str) -> tuple[str, dict[str, str]]:
    """The newest intact state in a folder, if newer than a host's, and the faults of damaged states, which are put aside.

    Reads nothing if no name is newer.
    """
    if all(sealed_files.step_of(name) <= sealed_files.step_of(than) for name in sealed_files.names(folder)):
        return "", {}
    broken = {name: reason for name in sealed_files.names(folder) if (reason := sealed_files.damage(folder / name))}
    for name in broken:
        sealed_files.put_aside(folder / name)
    newest = max(sealed_files.names(folder), key=sealed_files.step_of, default="")
    return (newest if sealed_files.step_of(newest) > sealed_files.step_of(than) else ""), broken
