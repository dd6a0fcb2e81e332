"""All runs in a table: also those of which nothing was collected, and those last seen under way."""

import json
import os
import re

import pytest

from control.common import project
from control.runs.launch.waiting_runs import Jobs
from control.runs.show import status


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setattr(project, "RUNS", tmp_path)
    jobs = {"queued": {"slurm": {"job": "8", "folder": "/x"}}, "told": {"slurm": {"job": "7", "folder": "/x", "told": True}}}
    ended = {"queued": "PREEMPTED", "told": "PREEMPTED", "refused": "FAILED_PREFLIGHT"}
    states = {"done": "SUCCEEDED", "away": None, "seen": "RUNNING", **ended}
    for at, (name, state) in enumerate(states.items()):
        (tmp_path / name).mkdir()
        if name != "refused":
            launched = {"launched_at": 1_800_000_000 + 86_400 * at, **jobs.get(name, {})}
            (tmp_path / name / "cluster.json").write_text(json.dumps(launched))
        if state:
            (tmp_path / name / "summary.json").write_text(json.dumps({"state": state}))
            os.utime(tmp_path / name / "summary.json", (1_800_000_000, 1_800_000_000))
    (tmp_path / "planned").mkdir()
    (tmp_path / "planned" / "config.yml").write_text("seed: 1\n")
    return tmp_path


def test_every_launched_or_refused_run_has_a_line(runs):
    heading, _, *lines = status.all_runs().splitlines()
    assert heading == "Runs, the latest first"
    assert [line.split()[0] for line in lines] == ["told", "queued", "seen", "away", "refused", "done"]
    assert " PREEMPTED " in lines[0]
    assert " job 8 of Slurm, not collected " in lines[1]
    assert "RUNNING at " in lines[2]
    assert ", 2027-01-15" in lines[2]
    assert " not collected " in lines[3]
    assert " FAILED_PREFLIGHT " in lines[4]
    assert " SUCCEEDED " in lines[5]


def test_of_no_run_nothing_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(project, "RUNS", tmp_path)
    assert status.all_runs() == ""


def test_what_hosts_say_goes_before_the_record(runs, tmp_path, monkeypatch):
    for name in ("seen", "away"):
        path = runs / name / "cluster.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "hosts": [{"name": "pi1"}, {"name": "pi2"}]}))
    waiting = [
        {"run": run, "state": "queued", "session": f"{run}-w0", "ticket": ticket} for run, ticket in (("theirs", "1"), ("seen", "2"))
    ]
    running = [{"run": run, "state": "running", "session": f"{run}-w0", "ticket": ""} for run in ("done", "trial")]
    (tmp_path / "sweeps" / "wide" / "trials" / "trial").mkdir(parents=True)
    monkeypatch.setattr(project, "SWEEPS", tmp_path / "sweeps")
    jobs = Jobs.of({"pi1": [*running, *waiting], "pi2": []})
    states = dict(re.findall(r"^  (\S+)(?: \(from elsewhere\))? {2,}(\S+(?: \S+)*)", status.all_runs(jobs), re.MULTILINE))
    expected = {"done": "RUNNING", "theirs": "QUEUED (1)", "seen": "QUEUED (2)", "away": "ended, not collected"}
    assert {name: states[name] for name in expected} == expected
    # One of its hosts did not answer.
    assert re.search(r"^  away +not collected ", status.all_runs(Jobs.of({"pi1": []})), re.MULTILINE)
    assert "trial" not in status.all_runs(jobs), "a sweep's trial is nobody else's run"
    assert status.all_runs(jobs).endswith("\ntheirs: to stop it: ansible-playbook stop.yml -e run=theirs")
    assert [jobs.note(run, host) for run, host in (("theirs", "pi1"), ("seen", "pi1"), ("done", "pi1"), ("seen", "pi2"))] == [
        "behind run done, trial",
        "behind run done, trial, theirs",
        "",
        "",
    ]
