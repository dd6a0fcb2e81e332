"""The phases of a step, as a section of a report; empty if no step was profiled."""

from control.report.blocks import Picture, Section, Table, Text
from control.report.facts import Run
from control.report.words import code
from control.runs import step_profile
from control.text import count


def medians(run: Run) -> dict[str, dict[str, float]]:
    """By host, in the order of rank: milliseconds of each phase; hosts without such steps are left out."""
    by_host = step_profile.medians(step_profile.read(run.folder))
    return {host["name"]: by_host[host["name"]] for host in run.cluster["hosts"] if host["name"] in by_host}


def sections(run: Run, level: int, picture: str) -> list[Section]:
    """One section, or none."""
    hosts = medians(run)
    if not hosts:
        return []
    number = sum(len(records) for records in step_profile.read(run.folder).values())
    how = f"{count(number, 'step')} of all hosts together were profiled and timed phase by phase; the figures are medians."
    sentences = [sentence for sentence in (step_profile.sentence(hosts), how) if sentence]
    drawn = Picture(picture, f"Bars of the milliseconds that each phase of a step takes on {count(len(hosts), 'host')} of {run.name}.")
    return [Section("What a step was made of", [Text(sentences), _table(run, hosts), drawn], level)]


def _table(run: Run, hosts: dict[str, dict[str, float]]) -> Table:
    rows = [[host, *(f"{value:,.1f}" for value in step_profile.columns(phases))] for host, phases in hosts.items()]
    return Table(f"A step of {code(run.name)} in milliseconds", step_profile.HEADER, rows)
