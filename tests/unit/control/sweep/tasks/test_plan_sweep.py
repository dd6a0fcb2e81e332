"""What `sweep.yml` is asked for: resolved, or refused with what is wrong."""

import dataclasses
from pathlib import Path

import pytest

from control.campaign import timings
from control.common import configurations
from control.sweep.scaling.design import Wanted
from control.sweep.tasks import plan as plan_sweep
from control.sweep.tasks import run_trials
from tests.unit.refusals import refusal_of_typed as refusal
from trainer.common.errors import LockstepError
from trainer.common.files import read_json, write_json, write_text
from trainer.rundir.launch_record import Host

NOWHERE = Path("/nowhere")
HOSTS = [Host(name=f"pi{number}", address=f"10.0.0.{number}", port=12345) for number in (1, 2, 3)]


CHOICE = {
    "config": "deep_cnn",
    "overrides": {"data.image_size": [72, 96, 3], "train.epochs": 30, "train.batch_size": 16},
    "why": "deep_cnn: colour images",
}


@pytest.mark.parametrize(("given", "batch"), [({}, 16), ({"set": "train.batch_size=8,data.limit_train=0.5"}, 8)])
def test_dataset_decides_all_but_the_trials_length(given, batch):
    """The dataset decides the configuration of a sweep but not how long a trial is."""
    options = plan_sweep._with_choice({"dataset": "fashion_mnist", **given}, CHOICE)
    config = plan_sweep._resolve(options, NOWHERE)
    assert (config.model["name"], config.data.image_size, config.train.batch_size) == ("deep_cnn", (72, 96, 3), batch)
    assert (config.train.epochs, config.train.steps_per_epoch) == (3, None)
    assert plan_sweep._with_choice({"config": "x"}, None) == {"config": "x"}


def test_epoch_is_whole_training_set_whatever_configuration_says():
    assert configurations.load(configurations.find("lecture_cnn"))["train"]["steps_per_epoch"] == 70
    actual = plan_sweep._resolve({}, NOWHERE)
    assert (actual.train.steps_per_epoch, actual.train.steps, actual.train.epochs) == (None, None, 3)
    assert plan_sweep._resolve({"epochs": "1", "set": "data.limit_train=0.1"}, NOWHERE).data.limit_train == 0.1


@pytest.mark.parametrize("key", ["train.steps=100", "train.steps_per_epoch=5", "train.time_limit=60"])
def test_what_would_make_times_incomparable_is_refused(key):
    assert refusal(plan_sweep._resolve, {"set": key}, NOWHERE) == (
        f"set={key}: an epoch of a sweep is the whole training set at every number of workers, or times could not be compared; "
        "to make trials shorter: -e set=data.limit_train=0.1"
    )


def test_saved_states_have_a_variable_of_their_own():
    message = refusal(plan_sweep._resolve, {"set": "checkpoint.every_steps=50"}, NOWHERE)
    assert message == "set=checkpoint.every_steps=50: a sweep takes it as -e checkpoint_every=50"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, Wanted((1, 2, 3), 3, 3, (0,), "weak")),
        ({"workers": "2"}, Wanted((2,), 3, 3, (0,), "weak")),
        ({"workers": "1-2", "repeats": "5", "epochs": "1", "scaling": "strong"}, Wanted((1, 2), 5, 1, (0,), "strong")),
        ({"checkpoint_every": "50,200,1000"}, Wanted((3,), 3, 3, (50, 200, 1000), "weak")),
        ({"checkpoint_every": "50,0", "workers": "1,2"}, Wanted((1, 2), 3, 3, (0, 50), "weak")),
    ],
)
def test_what_is_measured(options, wanted):
    assert plan_sweep._wants(options, 3) == wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": "1-5"}, "workers=1-5: the inventory has 3 hosts; add hosts or ask for fewer"),
        ({"repeats": "0"}, "repeats=0: expected a whole number from 1"),
        ({"epochs": "many"}, "epochs=many: expected a whole number from 1"),
        ({"scaling": "both"}, "scaling=both: expected weak (every worker keeps its batch) or strong (the global batch stays)"),
        ({"checkpoint_every": "often"}, "checkpoint_every=often: expected whole numbers from 0, as in 3 or 1,3,5 or 1-5"),
    ],
)
def test_values_that_are_refused(options, message):
    assert refusal(plan_sweep._wants, options, 3) == message


def test_asynchronous_steps_are_not_modelled():
    message = refusal(plan_sweep._resolve, {"set": "strategy.name=parameter_server"}, NOWHERE)
    assert message.startswith(
        "strategy.name=parameter_server: a sweep over numbers of workers measures and models synchronous steps. Fix: "
    )


@pytest.mark.parametrize("text", ["0", "-3", "much", "nan", "inf"])
def test_watts_that_are_none(text):
    message = refusal(plan_sweep.watts, {"watts_per_node": text})
    assert message == f"watts_per_node={text}: expected the watts that one host takes while it trains, as in 6.4"


def test_watts():
    assert plan_sweep.watts({"watts_per_node": "6.4"}) == 6.4
    assert plan_sweep.watts({}) is None


@pytest.mark.parametrize(
    ("config", "name"),
    [("task_cnn", "task_cnn-lab"), ("/home/me/My Model.yml", "my-model-lab"), ("x" * 60, "x" * 32), ("-", "lab")],
)
def test_the_same_command_means_the_same_sweep(config, name):
    assert plan_sweep._default_name(config, "lab") == name


# --- a sweep that is there


@pytest.fixture
def existing(tmp_path):
    """A sweep of the lecture's model on two of the hosts, with a measured trial."""
    config = plan_sweep._resolve({"set": "data.limit_train=0.25"}, NOWHERE)
    write_text(tmp_path / "config.yml", configurations.dump(config))
    write_json(tmp_path / "summary.json", plan_sweep._new_record("pi", {"seed": "17"}, config, HOSTS[:2]))
    timings.put(tmp_path / "timings.csv", timings.Timing(1, 1, 3, 40.0, 30.0, 1000.0, 0, "weak", "SUCCEEDED", "pi1"))
    return tmp_path


def same(folder, options=None, hosts=HOSTS):
    options = options or {}
    return plan_sweep._check_same(folder, "pi", plan_sweep._resolve(options, folder), hosts, options)


def test_a_new_record_says_what_a_step_is():
    record = plan_sweep._new_record("pi", {"seed": "17", "config": "a/task_cnn.yml"}, plan_sweep._resolve({}, NOWHERE), HOSTS)
    assert record == {
        "name": "pi",
        "config_name": "task_cnn",
        "seed": 17,
        "batch_size": 64,
        "global_batch": 192,
        "hosts": ["pi1 10.0.0.1", "pi2 10.0.0.2", "pi3 10.0.0.3"],
    }
    assert plan_sweep._new_record("pi", {}, plan_sweep._resolve({}, NOWHERE), HOSTS)["seed"] >= 1


def test_continued_sweep_keeps_its_seed_and_adds_hosts(existing):
    """A sweep that is continued keeps its seed and settings and learns of new hosts."""
    assert plan_sweep._resolve({"epochs": "1"}, existing).data.limit_train == 0.25
    known = same(existing)
    assert known["seed"] == 17
    assert known["hosts"] == ["pi1 10.0.0.1", "pi2 10.0.0.2", "pi3 10.0.0.3"]


def test_no_sweep_is_there_yet(tmp_path):
    assert same(tmp_path) == {}


def test_empty_sweep_keeps_no_settings(existing):
    """Nothing keeps the settings of a sweep that has measured nothing."""
    timings.put(existing / "timings.csv", timings.Timing(1, 1, 3, None, None, None, 0, "weak", "FAILED", "pi1"))
    assert plan_sweep._resolve({}, existing).data.limit_train is None
    assert same(existing, {"set": "train.batch_size=32"}) == {}


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"set": "data.limit_train=0.5"}, "data.limit_train"),
        ({"set": "train.batch_size=32,optimizer.momentum=0.5"}, "train.batch_size, optimizer.momentum"),
        ({"set": "train.global_batch=100", "scaling": "strong", "workers": "2"}, "train.global_batch"),
        ({"config": "lecture_cnn"}, "data.limit_train"),
        ({"seed": "18"}, "seed"),
    ],
)
def test_another_configuration_is_another_sweep(existing, options, key):
    assert refusal(same, existing, options, HOSTS[:2]) == (
        f"sweep=pi: it was measured with another {key}, and the two can't be compared; measure under another name: -e sweep=pi-2"
    )


def test_other_hosts_are_another_sweep(existing):
    moved = [HOSTS[0], dataclasses.replace(HOSTS[1], address="10.0.0.9")]
    assert "another list of hosts, and the two" in refusal(same, existing, {}, moved)
    assert same(existing, {}, HOSTS[:1])["hosts"] == ["pi1 10.0.0.1", "pi2 10.0.0.2"]


def test_epochs_and_numbers_of_workers_may_differ(existing):
    assert same(existing, {"epochs": "1", "workers": "2", "checkpoint_every": "5"}, HOSTS[:2])["seed"] == 17


def test_another_trainer_or_dataset_is_another_sweep():
    known = {"code": "a", "dataset": None}
    plan_sweep._check_same_facts("pi", {}, {"code": "b", "dataset": "d"})
    plan_sweep._check_same_facts("pi", known, {"code": "a", "dataset": "d"})
    message = refusal(plan_sweep._check_same_facts, "pi", {**known, "dataset": "c"}, {"code": "b", "dataset": "d"})
    assert message.startswith("sweep=pi: it was measured with another dataset, trainer (its code has changed), and the two")


# --- what the links carry


def network(mbit_s):
    return {"pi1": {"pairs": {"pi2": {"mbit_s": mbit_s}}}, "pi2": {"pairs": {"pi1": {"mbit_s": mbit_s + 5}}}}


def test_measured_links_are_written_down(existing):
    path = existing / "summary.json"
    run_trials._note_links(path, {})
    assert "mbit_s" not in read_json(path)
    run_trials._note_links(path, network(952.0))
    assert read_json(path)["mbit_s"] == 952.0
    run_trials._note_links(path, network(800.0))
    assert read_json(path)["mbit_s"] == 800.0


def test_other_links_are_another_sweep(existing):
    path = existing / "summary.json"
    run_trials._note_links(path, network(952.0))
    with pytest.raises(LockstepError) as caught:
        run_trials._note_links(path, network(95.0))
    assert str(caught.value) == (
        f"sweep={existing.name}: it was measured with another slowest link (952 Mbit/s, now 95), and the two can't be compared; "
        f"measure under another name: -e sweep={existing.name[:30]}-2"
    )
    (existing / "timings.csv").unlink()
    run_trials._note_links(path, network(95.0))
    assert read_json(path)["mbit_s"] == 95.0


@pytest.mark.parametrize(
    ("scaling", "addresses", "counts"),
    [("weak", ("10.0.0.1", "10.0.0.2"), True), ("weak", ("127.0.0.1", "127.0.0.1"), False), ("strong", ("10.0.0.1", "10.0.0.2"), False)],
)
def test_where_a_step_alone_says_nothing(scaling, addresses, counts):
    wanted = Wanted((1, 2), 1, 1, (0,), scaling)
    assert plan_sweep._step_alone_counts(wanted, [f"node{n} {address}" for n, address in enumerate(addresses)]) == counts
