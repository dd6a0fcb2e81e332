"""Hosts against each other: a synchronous step waits for the slowest, and repeats only where all are alike."""

import statistics
from collections.abc import Iterator

from trainer.analysis.checks.model import FAIL, WARN, Check, Facts, Hosts, Requirement, odd
from trainer.analysis.checks.packages import equal_packages
from trainer.analysis.checks.shared_folder import one_folder

SLOW_SHARE = 0.8


def across(hosts: Hosts, facts: Facts, need: Requirement) -> Iterator[Check]:
    """What differs between the hosts of which facts are known."""
    known = {host["name"]: facts[host["name"]] for host in hosts if host["name"] in facts}
    yield from equal_packages(known, need)
    kinds = {name: found["machine"] for name, found in known.items()}
    for name, usual in odd(kinds):
        yield Check(WARN, name, "machine", f"{kinds[name]}, the others {usual}", usual, "trains; the slower kind sets the pace of all")
    yield from _paces(known)
    yield from _own_folders(known)


def _paces(facts: Facts) -> Iterator[Check]:
    for key, what in (("cpus", "CPUs"), ("speed", "MB/s a core")):
        known = {name: found[key] for name, found in facts.items() if found.get(key)}
        usual = statistics.median(known.values()) if known else 0.0
        for name, value in known.items():
            if value < SLOW_SHARE * usual:
                mend = "the slowest host sets the pace: leave it out, or mend what holds it back"
                yield Check(WARN, name, "speed", f"{value:g} {what}, the others {usual:g}", f"at least {SLOW_SHARE * usual:g}", mend)


def _own_folders(facts: Facts) -> Iterator[Check]:
    """A worker's Python, claims and states are its own; on one home for all hosts they would write over each other."""
    places = {name: (found["disk"]["path"], found["disk"]["type"], found["disk"]["source"]) for name, found in facts.items()}
    for names in one_folder(places):
        path, fs_type, source = places[names[0]]
        value = f"{', '.join(names)} keep their workers in one folder: {path} ({fs_type} of {source})"
        mend = "set worker_root to a local disk, or to a folder that has {{ inventory_hostname }} in its path"
        yield Check(FAIL, names[0], "disk", value, "a worker_root of its own for every host", mend)
