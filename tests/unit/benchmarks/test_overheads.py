"""What `benchmarks/scripts/overheads.py` makes of a run's phases."""

import json

import pytest

from control.remote.worker_files import chief_records
from tests.unit.conftest import ROOT, load_file

overheads = load_file(ROOT / "benchmarks" / "scripts" / "overheads.py", "overheads")


def phases(*entered):
    return [{"kind": "phase", "phase": name, "note": "", "t": at} for at, name in entered]


BEFORE = [(0, "starting"), (2, "tracing")]
RUN = phases(*BEFORE, (10, "training"), (90, "saving"), (91, "training"), (111, "validating"), (115, "saving"), (118, "ended"))


def test_stays_are_counted_by_kind_and_all_before_the_first_step_is_the_start():
    assert overheads.stays(RUN) == {"training": [80, 20], "starting": [2, 8], "validating": [4], "saving": [1, 3]}


def test_restarts_count_as_starts_ends_take_no_time():
    entered = phases(
        *BEFORE, (10, "training"), (20, "ended"), (25, "rejoining"), (28, "tracing"), (30, "training"), (40, "ended"), (41, "ended")
    )
    assert overheads.stays(entered) == {"training": [10, 10], "starting": [2, 8, 3, 2], "validating": [], "saving": []}


def test_the_table_is_in_percent_of_the_training():
    lines = overheads.table("mine", [*RUN, {"kind": "heartbeat", "t": 1.0, "phase": "training", "step": 1}]).splitlines()
    assert lines[0] == "mine: 100.0 s of training"
    assert [line.split()[-4:] for line in lines[2:5]] == [
        ["10.00", "10.00%", "1", "10.000"],
        ["4.00", "4.00%", "1", "4.000"],
        ["4.00", "4.00%", "2", "2.000"],
    ]


def test_a_run_that_never_trained():
    assert "-" in overheads.table("mine", phases((0, "starting"), (5, "ended")))


def test_a_misspelt_run_is_named_with_the_nearest(tmp_path, monkeypatch):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.yml").touch()
    monkeypatch.setattr(overheads, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["overheads.py", "mien"])
    with pytest.raises(SystemExit) as caught:
        overheads.main()
    assert str(caught.value) == "run=mien: no such run (did you mean mine?); there are: mine"


def test_the_chief_s_record_is_read(tmp_path):
    (tmp_path / "workers" / "pi1").mkdir(parents=True)
    (tmp_path / "cluster.json").write_text(json.dumps({"hosts": [{"name": "pi1"}, {"name": "pi2"}]}))
    (tmp_path / "workers" / "pi1" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in RUN))
    assert chief_records(tmp_path) == RUN
