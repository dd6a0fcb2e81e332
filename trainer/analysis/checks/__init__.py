"""Is this cluster able to train? From what the probes saw to a line a check. Pure functions.

Input is what `host_probe` and `network_probe` return, by host. A host that SSH did not reach is
`{"unreachable": message}`. To the facts of a host the control node adds `before` and `after`: its own
clock (seconds since 1970) around the task that read them.
"""

from trainer.analysis.checks.cluster import examine
from trainer.analysis.checks.model import FAIL, OK, WARN, Check, Facts, Hosts, Requirement
from trainer.analysis.checks.report import document, exit_status, matrix, render, summary
from trainer.analysis.checks.shared_folder import one_folder
from trainer.analysis.checks.ssh_errors import ssh

__all__ = [
    "FAIL",
    "OK",
    "WARN",
    "Check",
    "Facts",
    "Hosts",
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
