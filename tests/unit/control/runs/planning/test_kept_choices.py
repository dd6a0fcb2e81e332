"""What was measured once for a model on a set of hosts: kept on the control node, given to later runs, renewed on request only."""

import json
from dataclasses import replace

import pytest

from control.common.configurations import to_dict as config_dict
from control.common.plan import Plan
from control.remote.published import Published
from control.runs.launch import launches
from control.runs.planning import kept_choices
from trainer.common.errors import ConfigError
from trainer.common.plain_values import to_plain
from trainer.config.schema import Config, Reduction
from trainer.engine import measured_choices
from trainer.rundir.launch_record import Host

LOOPBACK = ["127.0.0.1", "127.0.0.1"]
LAN = ["10.0.0.1", "10.0.0.2"]


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """Nothing of this project's own choices is read or written."""
    monkeypatch.setattr(kept_choices, "FOLDER", tmp_path / "choices")
    return tmp_path


def plan(scratch, run="first", addresses=LAN, remeasure=False, state="", changes=None, **overrides):
    """As much of a plan as is used, through what planning adds."""
    config = json.loads(json.dumps(config_dict(Config())))
    for key, value in (changes or {}).items():
        section, _, name = key.partition(".")
        config[section][name] = value
    hosts = [Host(name=f"pi{number}", address=address, port=12345) for number, address in enumerate(addresses)]
    counts = {"global_batch": 128, "workers": len(addresses)}
    made = Plan(
        run=run, folder=scratch / "runs" / run, config=config, hosts=hosts, parameters={"total": 100, "trainable": 100}, counts=counts
    )
    made = replace(made, **overrides)
    if state:
        (scratch / "runs" / run / "state").mkdir(parents=True)
        (scratch / "runs" / run / "state" / state).touch()
    return replace(made, kept=kept_choices.of(made, remeasure))


def measure(made, at=1000.0, **record):
    """A run is launched, and its chief tells what it measured."""
    folder = made.folder
    folder.mkdir(parents=True, exist_ok=True)
    written = launches.record(made, Published())
    (folder / "cluster.json").write_text(json.dumps(to_plain(written) | {"launched_at": at}))
    for kind in ("reduction", "shares"):
        if kind in record:
            kept_choices.keep_of(folder, {"kind": kind, "measured": True, **record[kind]})


def given(made, tmp_path):
    """What the run's workers read."""
    folder = tmp_path / "node"
    folder.mkdir(exist_ok=True)
    (folder / "cluster.json").write_text(json.dumps({"kept": made.kept}))
    return measured_choices.EarlierChoice.of_run(folder)


def test_what_first_run_measured_later_ones_are_given(scratch):
    first = plan(scratch)
    assert kept_choices.sending_text(first) == "auto: measured at the start of this training, and kept for later ones on these hosts"
    assert given(first, scratch).method is None
    measure(first, reduction={"name": "powersgd"})
    # Another measurement, as a busy machine would give it, changes nothing.
    measure(plan(scratch, "second"), at=2000.0, reduction={"name": "packed"})
    third = plan(scratch, "third")
    assert given(third, scratch) == measured_choices.EarlierChoice("powersgd", None, "measured 1970-01-01 by run first")
    assert kept_choices.sending_text(third) == "powersgd rank 2 (measured 1970-01-01 by run first; measure again: -e remeasure=true)"


def test_measured_again_on_request_and_for_all(scratch):
    measure(plan(scratch), reduction={"name": "powersgd"})
    again = plan(scratch, "second", remeasure=True)
    assert kept_choices.sending_text(again).startswith("auto: measured at the start")
    measure(again, at=2000.0, reduction={"name": "packed"})
    assert plan(scratch, "third").kept["method"] == "packed"
    # Watched once more, that run is not the newest any longer.
    measure(plan(scratch, "fourth", remeasure=True), at=3000.0, reduction={"name": "powersgd"})
    measure(again, at=2000.0, reduction={"name": "packed"})
    assert plan(scratch, "fifth").kept["method"] == "powersgd"


@pytest.mark.parametrize(
    "other",
    [
        {"addresses": ["10.0.0.1", "10.0.0.3"]},
        {"addresses": LAN[::-1]},
        {"addresses": [*LAN, "10.0.0.3"]},
        {"changes": {"reduction.rank": 4}},
        {"changes": {"reduction.transport": "tensorflow"}},
        {"changes": {"train.precision": "mixed_bfloat16"}},
        {"changes": {"model.name": "task_cnn"}},
        {"changes": {"data.image_size": [64, 64, 3]}},
        {"counts": {"global_batch": 64, "workers": 2}},
    ],
)
def test_another_model_or_other_hosts_measure_for_themselves(scratch, other):
    measure(plan(scratch), reduction={"name": "powersgd"})
    assert "method" in plan(scratch, "same").kept
    assert "method" not in plan(scratch, "other", **other).kept


def test_ports_and_names_of_runs_do_not_count(scratch):
    measure(plan(scratch), reduction={"name": "powersgd"})
    hosts = [Host(name=f"pi{number}", address=address, port=23456) for number, address in enumerate(LAN)]
    assert plan(scratch, "other", hosts=hosts).kept["method"] == "powersgd"


def test_a_division_of_the_images_is_kept_too(scratch):
    auto = {"train.batch_sizes": "auto"}
    first = plan(scratch, changes=auto)
    assert kept_choices.divided(first) == ""
    measure(first, reduction={"name": "packed"}, shares={"parts": [80, 48]})
    second = plan(scratch, "second", changes=auto)
    assert given(second, scratch).shares == [80, 48]
    assert kept_choices.divided(second) == ", divided 80 and 48 (measured 1970-01-01 by run first; measure again: -e remeasure=true)"
    assert given(plan(scratch, "third"), scratch).shares is None


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "reduction", "name": "powersgd", "measured": False},
        {"kind": "reduction", "name": "powersgd"},
        {"kind": "reduction", "name": "../x", "measured": True},
        {"kind": "shares", "parts": [1, -1], "measured": True},
        {"kind": "shares", "parts": "all", "measured": True},
        {"kind": "shares", "parts": [1, 10**9], "measured": True},
        {"kind": "shares", "parts": [128], "measured": True},
        {"kind": "steps", "name": "powersgd", "measured": True},
    ],
)
def test_unmeasured_or_senseless_values_are_not_kept(scratch, record):
    first = plan(scratch)
    measure(first)
    kept_choices.keep_of(first.folder, record)
    assert not (scratch / "choices").exists()


def test_run_that_goes_on_is_not_measured_again(scratch):
    with pytest.raises(ConfigError, match=r"^remeasure=true: run=first continues as it began. Fix: leave it out, or give a new run name"):
        plan(scratch, remeasure=True, state="step-000000001.npz")


def test_the_loopback_is_never_measured(scratch):
    assert kept_choices.sending_text(plan(scratch, addresses=LOOPBACK)) == "packed (all workers are on this one machine)"
    assert measured_choices.unmeasured(Reduction(), LOOPBACK, None, measured_choices.EarlierChoice("powersgd")) == (
        "packed",
        "all workers are on this one machine",
    )


@pytest.mark.parametrize(
    ("addresses", "one"),
    [
        (["127.0.0.1", "127.0.0.2"], True),
        (["::1", "localhost"], True),
        (["127.0.0.1", "10.0.0.1"], False),
        (["10.0.0.1"], False),
        (["node01"], False),
    ],
)
def test_one_machine(addresses, one):
    assert measured_choices.one_machine(addresses) is one


def test_named_or_original_choice_comes_first(scratch):
    """What a person names or the run began with comes first."""
    assert measured_choices.unmeasured(Reduction(name="half"), LOOPBACK, "powersgd", measured_choices.EarlierChoice("packed")) == (
        "half",
        "as configured",
    )
    assert measured_choices.unmeasured(Reduction(), LAN, "packed", measured_choices.EarlierChoice("powersgd"))[0] == "packed"
    assert measured_choices.unmeasured(Reduction(), LOOPBACK, "powersgd", None) == ("powersgd", "as when the run began")
    assert measured_choices.unmeasured(Reduction(), LAN, None, measured_choices.EarlierChoice()) is None
    for method in (None, "powersgd"):
        scaled = measured_choices.unmeasured(Reduction(), LAN, method, measured_choices.EarlierChoice("powersgd"), scaled=True)
        assert scaled == ("packed", "the optimizer scales the loss by a factor that changes")
    assert kept_choices.sending_text(plan(scratch, changes={"reduction.name": "half"})) == "half (as configured)"
    assert kept_choices.sending_text(plan(scratch, addresses=["10.0.0.1"])) == ""


@pytest.mark.parametrize(
    "stored", [None, [], "x", {"method": "half"}, {"shares": [0, 1]}, {"shares": ["1"]}, {"shares": [True]}, {"method": 3, "shares": 4}]
)
def test_a_record_that_makes_no_sense_gives_nothing(stored):
    assert measured_choices.EarlierChoice.parse(stored) in (measured_choices.EarlierChoice(), measured_choices.EarlierChoice(origin=""))


def test_slurms_jobs_read_theirs_from_their_own_record(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"id": "x", "kept": {"method": "packed", "told": "t"}}))
    assert measured_choices.EarlierChoice.of_run(tmp_path) == measured_choices.EarlierChoice("packed", None, "t")
    assert measured_choices.EarlierChoice.of_run(tmp_path / "none") == measured_choices.EarlierChoice()
