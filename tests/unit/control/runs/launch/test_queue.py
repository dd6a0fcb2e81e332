"""Queued runs on the control node: tickets, what is said of them."""

import json

import pytest

from control.remote.answers import believed
from control.runs.launch import waiting_runs
from control.runs.results.outcome import Verdict
from trainer.common.errors import LockstepError
from trainer.host.claims import TICKET
from trainer.rundir.phases import Phase


def test_tickets_sort_by_time():
    drawn = [waiting_runs.ticket(nonce) for nonce in ("ff" * 16, "00" * 16)]
    assert all(TICKET.fullmatch(one) for one in drawn)
    assert drawn[0][:13] <= drawn[1][:13]


def test_a_run_that_waits_says_for_what():
    waiting = Verdict("pi1", 0, "running", phase=Phase.QUEUED, message="behind run old")
    assert waiting_runs.progress([waiting, Verdict("pi2", 1, "running", phase="training")]) == "is queued: behind run old"
    assert waiting_runs.progress([Verdict("pi2", 1, "running", phase="training")]) == "is under way"


@pytest.mark.parametrize(
    "job",
    [
        {"run": "../x", "state": "queued", "session": "x-w0", "ticket": "1800000000000-00ff00ff"},
        {"run": "x", "state": "\u001b[2J", "session": "x-w0", "ticket": ""},
        {"run": "x", "state": "queued", "session": "x-w0", "ticket": "1; id"},
        {"run": "x", "state": "queued", "session": "x-w0"},
        {"run": "x", "state": "queued", "session": "x; id", "ticket": ""},
        "x",
    ],
)
def test_senseless_jobs_of_hosts_are_refused(job):
    with pytest.raises(LockstepError, match="worker_jobs: the host answers"):
        believed("worker_jobs", json.dumps({"changed": False, "jobs": [job]}), {})
