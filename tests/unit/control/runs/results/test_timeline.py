"""The timeline of a launch: stages of the command, phases of the chief by this machine's clock, and their picture as text."""

import json

import pytest

from control.runs.results.run_folder import RunFolder
from control.runs.results.timeline import FIRST_CALL, HERE, REST, Span, spans
from control.runs.show.timeline_text import show_timeline
from tests.unit.report_samples import make_run

STAGES = [["Plan", 0.9], ["Take back", 2.99], ["Look", 3.0], ["Train", 5.0]]
PHASES = [
    (100.0, "starting"),
    (100.5, "joining"),
    (102.0, "joining"),
    (103.5, "tracing"),
    (105.0, "training"),
    (115.0, "validating"),
    (116.0, "ended"),
]
"""By the chief's clock, which is 93 s ahead of the seconds since Enter."""


@pytest.fixture
def run(tmp_path):
    launch = {"until": "result", "seconds_from_enter": 25.0, "seconds_to_training": 12.0, "seconds_after_training": 2.0, "stages": STAGES}
    folder = make_run(tmp_path, "one", launch=launch)
    records = [{"t": t, "kind": "phase", "phase": phase, "note": ""} for t, phase in PHASES]
    step = {"epoch": 1, "step": 8, "images_per_s": 1.0, "input_wait": 0.0, "seconds": 1.0, "metrics": {}}
    records += [{"t": 106.0, "kind": "steps", **step}, {"t": 110.0, "kind": "steps", **step}]
    write_records(folder, records)
    return RunFolder(folder)


def write_records(folder, records):
    part = folder / "workers/node01"
    part.mkdir(parents=True, exist_ok=True)
    (part / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_spans_follow_from_stages_and_phases(run):
    chief = [("start Python", 7.0, 7.5), ("import TensorFlow, join", 7.5, 10.5), ("trace", 10.5, 12.0), (FIRST_CALL, 12.0, 13.0)]
    assert spans(run) == [
        *(Span(HERE, *one) for one in [("start Ansible", 0.0, 0.9), ("Plan", 0.9, 2.99), ("Look", 3.0, 5.0), ("Train", 5.0, 7.0)]),
        Span(HERE, "collect, show the result", 23.0, 25.0),
        *(Span("node01", *one) for one in [*chief, (REST, 13.0, 23.0)]),
    ]


def test_long_training_takes_part_of_the_axis(run):
    """The bars of the other spans stay readable."""
    lines = show_timeline(run).splitlines()
    bars = {line[20:46].strip(): line.count("█") for line in lines if "█" in line}
    assert lines[:2] == ["  from Enter  takes (s)", "  this machine"]
    assert bars["train, validate, save"] == 13
    assert bars["import TensorFlow, join"] == 7


def test_the_picture_is_named(run):
    assert show_timeline(run).splitlines()[-1] == f"  picture: {run.path}/timeline.png"
    assert (run.path / "timeline.png").read_bytes()[:4] == b"\x89PNG"


def test_a_run_whose_end_is_unknown_has_none(tmp_path):
    assert show_timeline(RunFolder(make_run(tmp_path, "two"))) == (
        "The timeline of two is not known: it has not ended, trained no step, or no command watched its end."
    )


def test_hostile_times_stay_on_the_axis(run):
    """A node's records may hold any number of phases and any times."""
    kinds = ("starting", "joining", "tracing", "anything")
    records = [{"t": (-1) ** number * 1e12, "kind": "phase", "phase": kinds[number % 4], "note": ""} for number in range(5_000)]
    write_records(run.path, [*records, {"t": 5.0, "kind": "phase", "phase": "training", "note": ""}])
    assert all(0.0 <= span.begins <= span.ends <= 25.0 for span in spans(run))
    assert len(spans(run)) == 9
    assert max(map(len, show_timeline(run).splitlines())) < 120
