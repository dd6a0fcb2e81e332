"""All runs in a table: also those of which nothing was collected, and those last seen under way."""

import json
import os

import pytest

from plugins.shared import control, listing


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setattr(control, "RUNS", tmp_path)
    for at, (name, state) in enumerate({"done": "SUCCEEDED", "away": None, "seen": "RUNNING", "asked": "FAILED"}.items()):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cluster.json").write_text(json.dumps({"launched_at": 1_800_000_000 + 86_400 * at}))
        if state:
            (tmp_path / name / "summary.json").write_text(json.dumps({"state": state}))
            os.utime(tmp_path / name / "summary.json", (1_800_000_000, 1_800_000_000))
    (tmp_path / "planned").mkdir()
    (tmp_path / "planned" / "config.yml").write_text("seed: 1\n")
    return tmp_path


def test_every_run_that_was_launched_has_a_line_the_latest_first(runs):
    heading, _, *lines = listing.others("asked").splitlines()
    assert heading == "Other runs, the latest first"
    assert [line.split()[0] for line in lines] == ["seen", "away", "done"]
    assert "RUNNING at " in lines[0]
    assert ", 2027-01-15" in lines[0]
    assert "not collected" in lines[1]
    assert "SUCCEEDED" in lines[2]


def test_of_no_other_run_nothing_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(control, "RUNS", tmp_path)
    assert listing.others("asked") == ""
