"""Hosts against each other: a synchronous step waits for the slowest, and is reproducible only if all are alike."""

import statistics
from collections.abc import Iterator

from control.doctor.checks.model import FAIL, WARN, Check, Facts, Hosts, Requirement, odd
from control.doctor.checks.packages import equal_packages
from control.doctor.checks.shared_folder import one_folder

SLOW_SHARE = 0.8


def across(hosts: Hosts, facts: Facts, need: Requirement) -> Iterator[Check]:
    """Differences between the hosts with known facts."""
    answering = {host["name"]: facts[host["name"]] for host in hosts if host["name"] in facts}
    yield from equal_packages(answering, need)
    kinds = {name: one["machine"] for name, one in answering.items()}
    for name, usual in odd(kinds):
        yield Check(WARN, name, "machine", f"{kinds[name]}, the others {usual}", usual, "trains; the slower kind sets the pace of all")
    yield from _paces(answering)
    yield from _own_folders(answering)


def _paces(facts: Facts) -> Iterator[Check]:
    for key, what in (("cpus", "CPUs"), ("speed", "MB/s per core")):
        values = {name: host[key] for name, host in facts.items() if host.get(key)}
        usual = statistics.median(values.values()) if values else 0.0
        for name, value in values.items():
            if value < SLOW_SHARE * usual:
                fix = "the slowest host sets the pace: leave it out, or fix what holds it back"
                yield Check(WARN, name, "speed", f"{value:g} {what}, the others {usual:g}", f"at least {SLOW_SHARE * usual:g}", fix)


def _own_folders(facts: Facts) -> Iterator[Check]:
    """Each worker needs its own Python, claims and states; with one home for all hosts they would overwrite each other."""
    folders = {name: (host["disk"]["path"], host["disk"]["type"], host["disk"]["source"]) for name, host in facts.items()}
    for names in one_folder(folders):
        path, fs_type, source = folders[names[0]]
        value = f"{', '.join(names)} keep their workers in one folder: {path} ({fs_type} of {source})"
        fix = "set worker_root to a local disk, or to a folder that has {{ inventory_hostname }} in its path"
        yield Check(FAIL, names[0], "disk", value, "a worker_root of its own for every host", fix)
