"""Whether this cluster can train: from the probes' results to one line per check. Pure functions.

Input is what `host_probe` and `network_probe` return, by host. A host that SSH did not reach is
`{"unreachable": message}`. The control node adds `before` and `after` to a host's facts: its own clock
(seconds since 1970) around the task that read them.
"""

from control.doctor.checks.cluster import examine
from control.doctor.checks.model import FAIL, OK, WARN, Check, Facts, Requirement
from control.doctor.checks.report import document, exit_status, matrix, render, summary
from control.doctor.checks.shared_folder import one_folder
from control.doctor.checks.ssh_errors import ssh

__all__ = [
    "FAIL",
    "OK",
    "WARN",
    "Check",
    "Facts",
    "Requirement",
    "document",
    "examine",
    "exit_status",
    "matrix",
    "one_folder",
    "render",
    "ssh",
    "summary",
]
