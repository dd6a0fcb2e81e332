"""What a step is made of: known samples, who is the slowest, what is said of it."""

import json

import pytest

from control.runs.results import step_profile
from trainer.worker.telemetry import PHASES


def sample(scale=1.0, **phases):
    values = {"input": 0.001, "forward_backward": 0.05, "compression": 0.002, "all_reduce": 0.03, "apply": 0.004, **phases}
    return {"t": 1e9, "kind": "split", "epoch": 1, "step": 50, "step_seconds": 0.09, "images": 64} | {
        phase: value * scale for phase, value in values.items()
    }


def write(run, host, *records, name="metrics.jsonl", end=""):
    path = run / "workers" / host / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + end)
    return path


def phases(own, all_reduce=30.0):
    return {"input": 1.0, "forward_backward": own - 7.0, "compression": 2.0, "all_reduce": all_reduce, "apply": 4.0}


# --- files


def test_read_gives_samples_of_hosts_that_have_any(tmp_path):
    write(tmp_path, "b", {"kind": "phase", "phase": "training"}, sample(), sample(2))
    write(tmp_path, "a", sample(3))
    write(tmp_path, "idle", {"kind": "heartbeat"})
    (tmp_path / "workers" / "empty").mkdir()
    actual = step_profile.read_profiles(tmp_path)
    assert list(actual) == ["a", "b"]
    assert actual == {"a": [sample(3)], "b": [sample(), sample(2)]}


def test_read_takes_earlier_launches_first(tmp_path):
    write(tmp_path, "a", sample(3))
    write(tmp_path, "a", sample(2), name="metrics-1700000200.jsonl")
    write(tmp_path, "a", sample(1), name="metrics-1700000100.jsonl")
    assert step_profile.read_profiles(tmp_path) == {"a": [sample(1), sample(2), sample(3)]}


@pytest.mark.parametrize("torn", ["{", json.dumps(sample(9))])
def test_torn_last_line_is_not_yet_record(torn, tmp_path):
    write(tmp_path, "a", sample(), end=torn)
    assert step_profile.read_profiles(tmp_path) == {"a": [sample()]}


@pytest.mark.parametrize("line", ["no json", "7", '{"t": 1, "kind": "split"}'])
def test_line_that_no_worker_writes_is_left_out(line, tmp_path):
    write(tmp_path, "a", sample(), end=f"{line}\n{json.dumps(sample())}\n")
    assert step_profile.read_profiles(tmp_path) == {"a": [sample(), sample()]}


def test_a_run_without_workers_has_no_samples(tmp_path):
    assert step_profile.read_profiles(tmp_path) == {}


def test_ragged_steps_are_left_out(tmp_path):
    """The last step of an epoch takes the images that are left."""
    ragged, nearly = sample(0.2) | {"images": 57}, sample(2) | {"images": 58}
    write(tmp_path, "a", sample(), ragged, nearly)
    write(tmp_path, "b", ragged)
    assert step_profile.read_profiles(tmp_path) == {"a": [sample(), nearly], "b": [ragged]}
    assert step_profile.median([sample(), ragged, ragged]) == step_profile.median([sample()])


# --- numbers


def test_median_is_in_milliseconds_by_phase():
    actual = step_profile.median([sample(), sample(2), sample(10, apply=0.0001)])
    assert tuple(actual) == PHASES
    assert list(actual.values()) == pytest.approx([2.0, 100.0, 4.0, 60.0, 4.0])


def test_no_samples_no_median():
    assert step_profile.median([]) == {}
    assert step_profile.medians({"a": [], "b": [sample()]}) == {"b": step_profile.median([sample()])}


def test_own_seconds_are_of_the_slowest_without_waiting():
    fast, slow = [sample(), sample(), sample(9)], [sample(1.5), sample(1.5, all_reduce=9.0)]
    assert step_profile.own_seconds({"a": fast}) == pytest.approx(0.057)
    assert step_profile.own_seconds({"a": fast, "b": slow}) == pytest.approx(0.0855)
    alike = {name: [sample(factor)] for name, factor in (("a", 0.97), ("b", 1.0), ("c", 1.04))}
    assert step_profile.own_seconds(alike) == pytest.approx(0.057), "the largest of equal hosts is chance"
    assert step_profile.own_seconds({"a": [sample(), sample(0.1) | {"images": 6}, sample(0.1) | {"images": 6}]}) == pytest.approx(0.057)


# --- words


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ([], ""),
        ([60], ""),
        (
            [70, 71, 92, 69],
            "c is the slowest: 92 ms of its own work per step, 1.31 times the others' median; the others wait for it in the all-reduce.",
        ),
        ([9.26, 7.5], "a is the slowest: 9.3 ms of its own work per step, 1.23 times that of b; b waits for it in the all-reduce."),
        ([100, 110], "b is the slowest: 110 ms of its own work per step, 1.10 times that of a; a waits for it in the all-reduce."),
        ([100, 100, 100], "No host is slower than the others by more than 10%: the slowest, a, by 0%."),
        ([100, 109, 100], "No host is slower than the others by more than 10%: the slowest, b, by 9%."),
    ],
)
def test_sentence_names_the_slowest_of_several(own, sentence):
    assert step_profile.sentence({host: phases(each) for host, each in zip("abcd", own, strict=False)}) == sentence


def test_shown_is_heading_table_and_sentence():
    assert step_profile.profile_text({}) == ""
    lines = step_profile.profile_text({"a": phases(57), "long-name": phases(1057, 1234.5)}).splitlines()
    assert lines[:4] == [
        "A step in milliseconds (median of the profiled steps)",
        "  host       input  forward/backward  compression  all-reduce  apply  own work     step",
        "  a            1.0              50.0          2.0        30.0    4.0      57.0     87.0",
        "  long-name    1.0           1,050.0          2.0     1,234.5    4.0   1,057.0  2,291.5",
    ]
    assert lines[4].startswith("  long-name is the slowest: ")
    assert len(step_profile.profile_text({"a": phases(57)}).splitlines()) == 3, "one host has no sentence"
