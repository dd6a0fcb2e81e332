"""What the network should cost: known answers."""

from pathlib import Path

import pytest

from control.common.plan import Plan
from control.runs.results import expected_speed
from control.runs.results.step_model import Prediction
from trainer.common.plain_values import from_plain, to_plain
from trainer.rundir.launch_record import Host, LaunchRecord


def test_table():
    rows = [
        Prediction(1, "", 0.5, 0.0, 0.0, 0.0, 0.0, 0.5, 256.0, 1.0),
        Prediction(5, "powersgd", 0.6, 0.016, 0.128, 0.004, -0.1, 0.648, 987.7, 0.772),
    ]
    assert expected_speed.table(rows).splitlines() == [
        "  workers  sent      compute ms  exchange ms  wire ms  delay ms  waiting ms  step ms  images/s  of ideal",
        "        1  -              500.0          0.0      0.0       0.0         0.0    500.0       256      100%",
        "        5  powersgd       600.0         16.0    128.0       4.0      -100.0    648.0       988       77%",
    ]


@pytest.mark.parametrize(
    ("predicted", "measured", "sentence"),
    [
        (1013, 980, "1,013 images/s by the doctor, measured 980: 3% too high"),
        (900, 1000, "900 images/s by the doctor, measured 1,000: 10% too low"),
        (1002, 1000, "1,002 images/s by the doctor, measured 1,000: correct within 1%"),
        (0, 1000, "0 images/s by the doctor, measured 1,000: 100% too low"),
        (900, 0, "900 images/s by the doctor, measured 0"),
        (0, 0, "0 images/s by the doctor, measured 0"),
    ],
)
def test_sentence(predicted, measured, sentence):
    assert expected_speed.sentence(predicted, measured) == sentence
    assert expected_speed.sentence(predicted, measured, "example") == sentence.replace("images", "examples")


HOSTS = ["a", "b", "c"]
CONFIG = {"model": {"name": "task_cnn"}, "data": {"image_size": [32, 32, 3]}, "reduction": {"name": "auto"}}
COUNTS = {"global_batch": 192, "workers": 3}
PLACES = [Host(name=name, address=f"10.0.0.{number}") for number, name in enumerate(HOSTS)]


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """A prediction for three hosts, with 64 images each."""
    monkeypatch.setattr(expected_speed, "FOLDER", tmp_path)
    plan = Plan(run="trial", folder=Path("trial"), config=CONFIG, hosts=PLACES, counts=COUNTS)
    predictions = [Prediction(workers, "packed", 0.5, 0.0, 0.0, 0.0, 0.0, 0.5, 128.0 * workers, 1.0) for workers in (1, 2, 3)]
    expected_speed.save(plan, predictions, {name: {"cpus": 0.38} for name in HOSTS}, dict.fromkeys(HOSTS, 1))
    return predictions


def record(workers=3, **changed):
    """cluster.json of a run on the first hosts, with facts of the last one changed."""
    hosts = [{**to_plain(place), "threads": 1, "cpus": 0.38} for place in PLACES[:workers]]
    counts = {"global_batch": 64 * workers, "workers": workers}
    return from_plain(LaunchRecord, {"hosts": [*hosts[:-1], {**hosts[-1], **changed}], "counts": counts})


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_run_on_hosts_as_they_were_predicted(saved, workers):
    assert expected_speed.expected(CONFIG, record(workers)) == saved[workers - 1].images_per_s
    assert expected_speed.expected(CONFIG, record(workers), [64] * workers) == saved[workers - 1].images_per_s


@pytest.mark.parametrize(
    ("changed", "shares"),
    [
        *((changed, None) for changed in ({"cpus": 0.19}, {"cpus": None}, {"threads": 2}, {"address": "10.0.0.9"}, {"name": "d"})),
        *(({}, shares) for shares in ([80, 80, 32], [0, 0, 0], [96, 96])),
    ],
)
def test_prediction_for_other_hosts_or_shares_is_dropped(saved, changed, shares):
    assert expected_speed.expected(CONFIG, record(**changed), shares) is None
    assert expected_speed.expected(CONFIG, record(2)) == saved[1].images_per_s, "the changed one does not train"


def test_prediction_of_earlier_version_is_not_quoted(saved):
    (file,) = expected_speed.FOLDER.iterdir()
    value = expected_speed.read_json(file)
    del value["made_with"]
    expected_speed.write_json(file, value)
    assert expected_speed.expected(CONFIG, record()) is None
