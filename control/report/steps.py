"""The phases of a step, as a section of a report; empty if no step was profiled."""

from control.report.blocks import Picture, Section, Table, Text
from control.report.facts import Run
from control.report.words import code
from control.runs import step_profile
from control.text import count
from trainer.records import PHASES


def medians(run: Run) -> dict[str, dict[str, float]]:
    """By host, in the order of rank: milliseconds of each phase; hosts without such steps are left out."""
    return _by_rank(run, step_profile.medians(step_profile.read(run.folder)))


def _by_rank(run: Run, found: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {host["name"]: found[host["name"]] for host in run.cluster["hosts"] if host["name"] in found}


def sections(run: Run, level: int, picture: str) -> list[Section]:
    """One section, or none."""
    samples = step_profile.read(run.folder)
    hosts = _by_rank(run, step_profile.medians(samples))
    if not hosts:
        return []
    number = sum(len(records) for records in samples.values())
    how = f"{count(number, 'step')} of all hosts together were profiled and timed phase by phase; the figures are medians."
    said = [one for one in (step_profile.sentence(hosts), how) if one]
    drawn = Picture(picture, f"Bars of the milliseconds that each phase of a step takes on {count(len(hosts), 'host')} of {run.name}.")
    return [Section("What a step was made of", [Text(said), _table(run, hosts), drawn], level)]


def _table(run: Run, hosts: dict[str, dict[str, float]]) -> Table:
    header = ["host", *(step_profile.TITLES.get(phase, phase) for phase in PHASES), "own work", "step"]
    rows = [
        [host, *(f"{value:,.1f}" for value in (*(phases[phase] for phase in PHASES), step_profile.own_work(phases), sum(phases.values())))]
        for host, phases in hosts.items()
    ]
    return Table(f"A step of {code(run.name)} in milliseconds", header, rows)
