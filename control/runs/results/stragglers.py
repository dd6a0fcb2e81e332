"""Text on a worker for which the others wait: the host, the cost, the cause and the fix."""

from collections.abc import Iterable, Sequence
from typing import Any

from trainer.rundir.straggler import LINK

AUTO = "or give it a smaller batch: -e set=train.batch_sizes=auto"
WORDS: dict[str, tuple[str, str]] = {
    "memory": ("its memory is full: programs use {value:.0%} of the limit", "end what else is there, raise the limit, " + AUTO),
    "disk": (
        "it waits {value:,.0f} ms of each step for input, the others {usual:,.0f}",
        "a faster disk, or more memory",
    ),
    "heat": ("its processor was slowed {value:.0f} times because of its temperature", "cool it, " + AUTO),
    "steal": ("other virtual machines take {value:.2f} of its CPUs", "move it to a machine of its own, " + AUTO),
    "quota": ("it may use {value:.2f} CPUs, the others {usual:.2f}", "raise the CPU quota of its control group, " + AUTO),
    "load": ("other processes use {value:.2f} CPUs there, elsewhere {usual:.2f}", "end them (top shows them), " + AUTO),
    "clock": (
        "its processor runs at {value:.0%} of its highest clock, the others at {usual:.0%}",
        "see its power supply and governor, " + AUTO,
    ),
    LINK: (
        "its best connection carries {value:,.0f} Mbit/s, the others' {usual:,.0f}",
        "see its cable and switch port (ansible-playbook doctor.yml measures them)",
    ),
    "unknown": ("no cause is visible there: its processor may be slower", "-e set=train.batch_sizes=auto gives it a smaller batch"),
}
"""Texts by cause: the reading on that host, and the fix."""
UNITS = {"disk": 1e-3, LINK: 8e-3, "heat": 1.0}
"""Size of one unit of a cause's number, by cause; other causes count in thousandths."""


def sentence(record: dict[str, Any], hosts: Sequence[str]) -> str:
    """Sentence on a record of kind `straggler`; empty if it names no host, or none of these. `hosts`: names by rank."""
    if not record["cause"] or record["rank"] >= len(hosts):
        return ""
    cause, fix = WORDS[record["cause"]]
    unit = UNITS.get(record["cause"], 1e-3)
    why = cause.format(value=record["value"] * unit, usual=record["usual"] * unit)
    waits = _ms(max(0, record["own_us"] - record["others_us"]))
    return f"{hosts[record['rank']]} is slow, and the others wait {waits} of each step for it: {why}. Fix: {fix}"


def last(records: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """The newest record of kind `straggler`, which may name no host; None if the workers were not compared."""
    compared = [record for record in records if record["kind"] == "straggler"]
    return compared[-1] if compared else None


def _ms(microseconds: int) -> str:
    return f"{microseconds / 1000:,.{0 if microseconds >= 10_000 else 1}f} ms"
