"""The plan of a run: names, hosts, operator variables, what a resumed run may change."""

import dataclasses
import json
import math
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from control.common import configurations, operator_variables
from control.common.plan import Plan
from control.datasets.listing.image_headers import shape_of
from control.datasets.listing.registry import Listing
from control.datasets.publishing import publish
from control.datasets.publishing.publish import PublishedData
from control.datasets.sources import idx
from control.datasets.sources.folder import Folder
from control.runs.planning import checks, host_choice, host_needs, model_size, plan, plan_dataset, preset, resolve
from control.runs.planning.plan_request import Inventory, OperatorRequest, Request
from control.runs.results import run_names
from control.runs.show import plan_text
from tests.unit.report_samples import write_history
from trainer.common.errors import ConfigError, LockstepError
from trainer.common.files import write_json
from trainer.common.plain_values import from_plain, to_plain
from trainer.config import schedule
from trainer.config import schema as configs
from trainer.data.images import decode
from trainer.data.manifest import Table
from trainer.data.spec import Leaf, Spec
from trainer.host.claims import RUN_NAME
from trainer.rundir.launch_record import Host

HOSTS = [Host(name=f"pi{number}", address=f"10.0.0.{number}", port=12345) for number in (1, 2, 3)]


@pytest.fixture
def ask(tmp_path):
    """Make a request of operator variables: `ask(run="x", epochs="3")`."""

    def make(write=True, hosts=HOSTS[:2], **options):
        return Request(
            asked=OperatorRequest.of(options),
            hosts=hosts,
            runs=tmp_path / "runs",
            packs=tmp_path / "packs",
            parameter_cache=tmp_path / "parameters",
            write=write,
        )

    return make


@pytest.fixture
def existing(tmp_path):
    """A run that was trained on two workers with the lecture's configuration."""
    folder = tmp_path / "runs" / "old"
    folder.mkdir(parents=True)
    config = resolve.with_global_batch(configurations.build(configurations.load(configurations.find("lecture_cnn"))), 2)
    (folder / "config.yml").write_text(configurations.dump(config), encoding="utf-8")
    write_json(folder / "cluster.json", {"hosts": to_plain(HOSTS[:2])})
    return folder


def choose(existing=None, workers=None, default=2, spares=(), hosts=HOSTS):
    asked = OperatorRequest.of({} if workers is None else {"workers": workers})
    return host_choice.choose_hosts(Inventory(hosts=hosts, spares=spares), asked.workers, default, existing)


def overrides(typed):
    return OperatorRequest.of(typed).overrides


def refusal(function, *arguments):
    with pytest.raises(LockstepError) as caught:
        function(*arguments)
    return str(caught.value)


def test_run_from_before_key_was_there_is_continued(ask, existing):
    path = existing / "config.yml"
    old = path.read_text()
    assert "  profile_every: 50\n" in old
    path.write_text(old.replace("  profile_every: 50\n", ""))
    assert resolve.resolve(ask(run="old", epochs="5").asked, existing)[0].telemetry.profile_every == 50
    assert "this run exists with another telemetry.profile_every" in refusal(
        resolve.resolve, ask(run="old", set="telemetry.profile_every=0").asked, existing
    )


def test_model_options_are_written_out_and_runs_kept(ask, existing):
    config, _ = resolve.resolve(ask(config="deep_cnn", set="model.stages=2").asked, None)
    assert config.model == {"name": "deep_cnn", "filters": 32, "stages": 2}
    before = configurations.override(configurations.load(existing / "config.yml"), {"model": {"name": "deep_cnn", "stages": 2}})
    (existing / "config.yml").write_text(configurations.dump(configurations.build(before)))
    assert resolve.resolve(ask(run="old", epochs="5").asked, existing)[0].model == {"name": "deep_cnn", "filters": 32, "stages": 2}
    assert "this run exists with another model.filters" in refusal(resolve.resolve, ask(run="old", set="model.filters=64").asked, existing)


# --- names


@pytest.mark.parametrize(
    "name",
    ["../x", "a/b", "/x", "a b", "$(x)", "`x`", "a;b", "", "a" * 65, ".hidden", "..", "-x", "_x", "a\n", "ä", "a+b", "a:b", "a'b"],
)
def test_run_names_that_could_do_harm_are_refused(name, ask):
    assert refusal(ask(run=name).run_name) == (f"run={name}: a run name is 1 to 64 of A-Z a-z 0-9 . _ - and starts with a letter or digit")


@pytest.mark.parametrize("name", ["a", "7", "a" * 64, "my-run_1.2", "a..b"])
def test_run_names_that_are_allowed(name, ask):
    assert ask(run=name).run_name() == (name, None)


def test_a_run_named_by_a_number(ask):
    assert ask(run=12).run_name() == ("12", None)


def test_an_existing_run_is_found(existing, ask):
    assert ask(run="old").run_name() == ("old", existing)


def test_a_folder_without_a_configuration_is_no_run(existing, ask):
    (existing / "config.yml").unlink()
    assert ask(run="old").run_name() == ("old", None)


@pytest.mark.parametrize(
    ("config", "stem"),
    [
        ("task_cnn", "task-cnn-"),
        ("/x/My Config!.yml", "my-config-"),
        ("/x/ä.yml", "run-"),
        ("runs/Mine/config.yml", "mine-"),
        ("config.yml", "run-"),
        ("/x/" + "a" * 99, "a" * 32 + "-"),
    ],
)
def test_new_name_follows_from_configuration_and_is_allowed(config, stem, ask):
    name, _ = ask(config=config).run_name()
    assert name.startswith(stem)
    assert RUN_NAME.fullmatch(name)


# --- operator variables


def test_without_variables_nothing_is_overridden():
    assert overrides({}) == {}


def test_shorthands_become_keys(make_folder):
    root = make_folder()
    assert overrides({"epochs": "5", "dataset": str(root), "allow_bad_images": "yes"}) == {
        "train.epochs": 5,
        "data.source": "folder",
        "data.path": str(root),
        "data.allow_bad_images": True,
    }


def test_set_wins_over_shorthands():
    assert overrides({"epochs": "5", "set": "train.epochs=7"}) == {"train.epochs": 7}


def test_quick_is_ten_steps_in_all(ask):
    """Quick is ten steps in all whatever the configuration says."""
    for config in ("lecture_cnn", "task_cnn", "resnet_cifar"):
        made, _ = resolve.resolve(ask(quick="true", config=config).asked, None)
        assert schedule.counts(made, 2, 60_000).total_steps == 10
    longer, _ = resolve.resolve(ask(quick="true", set="train.steps=1000,data.limit_train=10").asked, None)
    assert (longer.train.steps, longer.data.limit_train) == (1000, 10), "set wins"
    assert overrides({"quick": "false"}) == {}


def test_quick_with_a_number_of_epochs_is_refused():
    assert refusal(overrides, {"quick": "true", "epochs": "2"}) == (
        "quick=true, epochs=2: quick is ten steps in all; leave one of them out"
    )


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "three", "", "1e3", " 2", True, None])
def test_what_is_no_whole_number_from_one(value):
    assert refusal(overrides, {"epochs": value}) == f"epochs={value}: expected a whole number from 1"


@pytest.mark.parametrize(("value", "number"), [("7", 7), (7, 7), ("007", 7)])
def test_whole_numbers(value, number):
    assert operator_variables.integer("x", value) == number


@pytest.mark.parametrize(
    ("value", "truth"), [("true", True), ("Yes", True), (1, True), (True, True), ("off", False), (0, False), (False, False)]
)
def test_true_or_false(value, truth):
    assert operator_variables.boolean("quick", value) is truth


@pytest.mark.parametrize("value", ["maybe", "", "2", None, "tru"])
def test_neither_true_nor_false(value):
    assert refusal(overrides, {"quick": value}) == f"quick={value}: expected true or false"


@pytest.mark.parametrize("switch", ["detach", "quick", "remeasure"])
def test_invalid_switch_is_refused_first(switch, ask):
    assert refusal(OperatorRequest.of, {"run": "../x", switch: "mabye"}) == f"{switch}=mabye: expected true or false"


# --- configuration


def test_a_new_run_takes_file_and_overrides(ask):
    config, name = resolve.resolve(ask(config="task_cnn", epochs="4", set="seed=9").asked, None)
    assert (name, config.model["name"], config.train.epochs, config.seed) == ("task_cnn", "task_cnn", 4, 9)


def test_without_a_configuration_it_is_the_lectures(ask):
    assert resolve.resolve(ask().asked, None)[1] == "lecture_cnn"


def test_own_model_sees_every_image_of_an_epoch(ask, tmp_path):
    (tmp_path / "mine.py").write_text("def build(size, classes): pass\n")
    model = f"{tmp_path / 'mine.py'}:build"

    def steps(**options):
        request = ask(write=False, **options)
        return resolve.resolve(request.asked, None, plan._chosen(request)[0])[0].train.steps_per_epoch

    assert steps() == 70
    assert steps(model=model) is None
    assert resolve.resolve(ask(model=model, config="resnet50").asked, None)[0].train.steps_per_epoch is None
    assert steps(model=model, set="train.steps_per_epoch=9") == 9


def test_a_resumed_run_keeps_its_own_configuration(existing, ask):
    config, name = resolve.resolve(ask(run="old").asked, existing)
    assert (name, configurations.dump(config)) == ("config.yml", (existing / "config.yml").read_text())


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        ({"epochs": "9"}, "epochs", 9),
        ({"set": "train.epochs=9"}, "epochs", 9),
        ({"set": "train.steps=50"}, "steps", 50),
        ({"set": "train.time_limit=60"}, "time_limit", 60.0),
        ({"time_limit": "60"}, "time_limit", 60.0),
        ({"time_limit": "0"}, "time_limit", None),
        ({"config": "lecture_cnn"}, "epochs", 3),
    ],
)
def test_a_resumed_run_may_take_longer(options, key, value, existing, ask):
    config, _ = resolve.resolve(ask(run="old", **options).asked, existing)
    assert getattr(config.train, key) == value
    assert config.train.global_batch == 128


def test_a_resumed_run_may_have_another_title(existing, ask):
    config, _ = resolve.resolve(ask(run="old", set="report.title=Exercise 3: images").asked, existing)
    assert config.report.title == "Exercise 3: images"


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"set": "seed=2"}, "seed"),
        ({"set": "optimizer.learning_rate=0.5,seed=2"}, "seed, optimizer.learning_rate"),
        ({"set": "train.global_batch=7"}, "train.global_batch"),
        ({"set": "train.batch_size=8"}, "train.batch_size"),
        ({"quick": "true"}, "data.limit_train, data.limit_validation, train.steps_per_epoch"),
        ({"config": "task_cnn"}, "model.name, data.image_size, train.steps_per_epoch, optimizer.learning_rate, optimizer.momentum"),
    ],
)
def test_resumed_run_refuses_other_changes_and_names_them(options, keys, existing, ask):
    them = "them" if "," in keys else "it"
    assert refusal(resolve.resolve, ask(run="old", **options).asked, existing) == (
        f"run=old: this run exists with another {keys}. Leave out what sets {them} to continue it, or give a new run name. "
        "Of a run that is continued, only train.epochs, train.steps, train.patience, train.time_limit, "
        "train.batch_sizes, train.environment, data.loaders, checkpoint.copy, checkpoint.every_seconds, checkpoint.snapshots, "
        "recovery.max_restarts, recovery.max_restarts_per_hour, recovery.rejoin_wait, recovery.hang, recovery.standby, recovery.elastic, "
        "recovery.elastic_wait, recovery.min_workers, telemetry.mlflow, report.author, report.title may change."
    )


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_global_batch_is_fixed_once(workers):
    config = resolve.with_global_batch(configurations.build({"train": {"batch_size": 10}}), workers)
    assert config.train.global_batch == 10 * workers
    assert resolve.with_global_batch(config, 99) == config


# --- hosts


@pytest.mark.parametrize(
    ("workers", "names"),
    [(None, ["pi1", "pi2"]), ("1", ["pi1"]), (3, ["pi1", "pi2", "pi3"]), ("pi3,pi1", ["pi3", "pi1"]), ("pi2", ["pi2"])],
)
def test_the_first_hosts_or_the_named_ones_train(workers, names):
    assert chosen(workers=workers) == names


def test_more_hosts_than_the_inventory_has():
    assert refusal(choose, None, "4") == ("workers=4: the inventory has 3 (pi1, pi2, pi3); add hosts or ask for fewer")


def test_all_workers_take_as_many_gpus():
    host_choice.check_gpus([Host(name="a", gpus=2), Host(name="b", gpus=2)])
    assert refusal(host_choice.check_gpus, [Host(name="a", gpus=2), Host(name="b")]) == (
        "gpus=0 of b: a has 2, but all workers of a run need the same number; set the smallest number for all, "
        "or leave hosts out (-e workers=N takes the first N)"
    )


def test_a_host_that_trains_has_no_other_role():
    host_choice.check_roles([Host(name="a")])
    assert refusal(host_choice.check_roles, [Host(name="a"), Host(name="b", role="master")]) == (
        "worker_role=master of b: expected ps, and only for a host in the groups workers and parameter_servers. Fix: put b into "
        "parameter_servers, too; an evaluator into evaluators, without worker_role; or take worker_role out of the inventory"
    )


def test_host_that_trains_nothing_can_not_be_named():
    inventory = Inventory(hosts=HOSTS[:2], apart=[dataclasses.replace(HOSTS[2], role="evaluator")])
    assert refusal(host_choice.choose_hosts, inventory, "pi1,pi3", 2, None) == (
        "workers=pi1,pi3: pi3 is evaluator in the inventory (group evaluators), and takes no steps. Fix: name others; it is added by "
        "itself to asynchronous runs"
    )


@pytest.mark.parametrize("workers", ["0", "-1", "1.5"])
def test_a_number_of_hosts_that_is_none(workers, ask):
    assert refusal(OperatorRequest.of, {"workers": workers}) == f"workers={workers}: expected a whole number from 1"


def test_spares_train_only_if_they_are_named():
    given = {"hosts": HOSTS[:2], "spares": HOSTS[2:]}
    assert chosen(workers="2", **given) == ["pi1", "pi2"]
    assert host_choice.choose_spares(HOSTS[2:], HOSTS[:2]) == HOSTS[2:]
    assert chosen(workers="pi3,pi1", **given) == ["pi3", "pi1"]
    assert host_choice.choose_spares(HOSTS[2:], [HOSTS[2], HOSTS[0]]) == []
    assert refusal(lambda: choose(workers="3", **given)) == (
        "workers=3: the inventory has 2 (pi1, pi2), and as spares pi3; add hosts or ask for fewer"
    )
    assert refusal(host_choice.choose_spares, [dataclasses.replace(HOSTS[2], gpus=1)], HOSTS[:2]).startswith("gpus=1 of pi3: pi1 has 0")


def test_resumed_run_keeps_its_number_of_hosts(existing):
    """A resumed run keeps its number of hosts unless asked."""
    assert len(choose(existing, default=3)) == 2
    assert len(choose(existing, "1", default=3)) == 1
    (existing / "cluster.json").unlink()
    assert len(choose(existing, default=3)) == 3


def chosen(existing=None, workers=None, **given):
    return [host.name for host in choose(existing, workers, **given)]


@pytest.mark.parametrize(
    ("workers", "problem"),
    [
        (
            "pi2,lab",
            "workers=pi2,lab: 'lab' is no host of the inventory; expected how many train, or which of pi1, pi2, pi3, "
            "as in workers=2 or workers=pi2,pi3",
        ),
        ("pi1,pi2,pi1", "workers=pi1,pi2,pi1: pi1 appears twice; name each host once"),
        ("1,2", "workers=1,2: '1' is no host of the inventory"),
        ("", "workers=: '' is no host of the inventory"),
        ("$(id)", "workers=$(id): '$(id)' is no host of the inventory"),
    ],
)
def test_names_that_are_no_hosts(workers, problem):
    assert refusal(choose, None, workers).startswith(problem)


def test_a_run_on_named_hosts_stays_there(existing):
    write_json(existing / "cluster.json", {"hosts": to_plain([HOSTS[2], HOSTS[1]])})
    assert chosen(existing) == ["pi3", "pi2"]
    assert chosen(existing, "1") == ["pi3"]
    assert chosen(existing, "3") == ["pi3", "pi2", "pi1"]
    write_json(existing / "cluster.json", {"hosts": to_plain([HOSTS[2], HOSTS[1]]), "slurm": {"job": "7"}})
    assert chosen(existing) == ["pi1", "pi2"]


def test_run_of_unseen_end_does_not_move(existing):
    """A run whose end nobody saw does not start elsewhere."""
    assert refusal(choose, existing, "pi3") == (
        "workers=pi3: run=old was started on pi1, pi2, and its end has not been seen; stop it there first: "
        "ansible-playbook stop.yml -e run=old"
    )
    # On one of its own hosts its claim is found.
    assert chosen(existing, "pi3,pi2") == ["pi3", "pi2"]
    write_json(existing / "summary.json", {"state": "FAILED"})
    assert chosen(existing, "pi3") == ["pi3"]


# --- batch sizes of single hosts


def with_sizes(config, *sizes):
    return host_choice.with_batch_sizes(config, [Host(name=f"pi{number}", batch_size=size) for number, size in enumerate(sizes, 1)])


def test_inventory_host_may_have_its_own_batch_size():
    config = configurations.build({"train": {"batch_size": 64}})
    assert with_sizes(config, None, None) == config
    actual = with_sizes(config, None, "16", None)
    assert actual.train.batch_sizes == (64, 16, 64)
    assert resolve.with_global_batch(actual, 3).train.global_batch == 144


def test_configured_batch_sizes_win_with_one_each():
    """The configurations list wins and has one size for each."""
    config = configurations.build({"train": {"batch_sizes": [8, 4]}})
    assert with_sizes(config, 32, None) == config
    assert refusal(with_sizes, config, None, None, None) == (
        "train.batch_sizes: 2 sizes (8, 4) for 3 workers; give one for each, or null (-e set=train.batch_sizes=null) for equal ones"
    )


def test_a_hosts_batch_size_that_is_none():
    assert refusal(with_sizes, configurations.build({}), "many") == "worker_batch_size of pi1=many: expected a whole number from 1"


# --- sizes


def sizes(images=100, batch=10, total=30):
    return schedule.Counts(5, images, 10, batch, 10, 3, total)


def test_a_global_batch_below_the_workers():
    assert refusal(configurations.check_sizes, sizes(batch=4), 5) == (
        "train.global_batch=4: each of 5 workers needs an example per step. Fix: at least 5, or fewer workers (-e workers=N)"
    )


def test_fewer_images_than_workers():
    assert refusal(configurations.check_sizes, sizes(images=4), 5) == (
        "the dataset has 4 training examples, and each of 5 workers needs one. Fix: fewer workers (-e workers=N), or more examples"
    )


def test_just_enough_is_allowed():
    assert configurations.check_sizes(sizes(images=5, batch=5), 5) is None


# --- what a run has done already


@pytest.mark.parametrize(
    ("summary", "done"),
    [
        ({"state": "SUCCEEDED", "steps": 30}, True),
        ({"state": "SUCCEEDED", "steps": 31}, True),
        ({"state": "SUCCEEDED", "steps": 29}, False),
        ({"state": "CANCELLED", "steps": 30}, False),
        ({"state": "FAILED", "steps": 30}, False),
    ],
)
def test_complete_when_all_steps_are_done(summary, done, existing):
    write_json(existing / "summary.json", summary)
    assert plan._complete(existing, sizes(total=30), configs.Train()) is done


@pytest.mark.parametrize(("stalled", "patience", "done"), [(True, 2, True), (True, 3, False), (True, None, False), (False, None, True)])
def test_early_end_is_complete_without_more_patience(stalled, patience, done, existing):
    """A run that ended early is complete until it gets more patience."""
    write_json(existing / "summary.json", {"state": "SUCCEEDED", "steps": 12, "ended_early": True, "stalled": stalled})
    write_history(existing / "history.csv", [(1.0, 0.5, 1.0, 0.5), (0.9, 0.6, 1.0, 0.5), (0.8, 0.7, 1.1, 0.4)])
    assert plan._complete(existing, sizes(total=30), configs.Train(patience=patience)) is done


def test_not_complete_without_a_summary(existing):
    assert plan._complete(existing, sizes(), configs.Train()) is False
    assert plan._complete(None, sizes(), configs.Train()) is False


@pytest.fixture
def three_runs(tmp_path):
    runs = tmp_path / "runs"
    for age, name in enumerate(("newest", "a-middle", "oldest")):
        (runs / name).mkdir(parents=True)
        (runs / name / "config.yml").touch()
        (runs / name / "cluster.json").touch()
        os.utime(runs / name / "config.yml", (1000 - age, 1000 - age))
    (runs / "no-run").mkdir()
    return runs


def test_latest_run(three_runs):
    assert run_names.latest_run(three_runs, None) == three_runs / "newest"
    assert run_names.latest_run(three_runs, "oldest") == three_runs / "oldest"


def test_run_that_never_started_is_found_by_name(three_runs):
    (three_runs / "newest" / "cluster.json").unlink()
    assert run_names.latest_run(three_runs, None) == three_runs / "a-middle"
    assert run_names.latest_run(three_runs, "newest") == three_runs / "newest"


def test_what_a_run_needs_of_a_host():
    small = configurations.build(configurations.override({}, {"data.image_size": [32, 32, 3], "checkpoint.keep": 2}))
    mb = 2**20
    size = {"total": mb // 4}
    cached = host_needs.needs(small, 10 * mb // 3072, 3, size)
    first = host_needs.LOGS_MB + 10 + 3 + 6
    assert (cached["memory_mb"], cached["disk_mb"], cached["disk_whole_mb"], cached["free_mb"]) == (
        host_needs.RUNTIME_MB + 7,
        first,
        first,
        first,
    )
    assert (cached["states_mb"], cached["snapshots"], cached["snapshot_mb"]) == (6, 3, 1)
    assert host_needs.needs(small, 10 * mb // 3072, 3, size, resumes=True)["free_mb"] == host_needs.LOGS_MB
    long = host_needs.needs(small, 10 * mb // 3072, 100_000, size)
    assert (long["disk_mb"], long["disk_whole_mb"]) == (host_needs.LOGS_MB + 10 + 10 + 6, host_needs.LOGS_MB + 10 + 100_000 + 6)
    decoded = configurations.build(configurations.override(configurations.to_dict(small), {"data.cache_limit_mb": 9}))
    assert host_needs.needs(decoded, 10 * mb // 3072, 3, size)["disk_mb"] == host_needs.LOGS_MB + 3 + 6
    adam = configurations.build(configurations.override(configurations.to_dict(decoded), {"optimizer.name": "adam"}))
    needs = host_needs.needs(adam, 10 * mb // 3072, 3, size)
    assert (needs["memory_mb"], needs["disk_mb"], needs["disk_whole_mb"]) == (
        host_needs.RUNTIME_MB + 9,
        host_needs.LOGS_MB + 3 + 9,
        host_needs.LOGS_MB + 3 + 9,
    )


@pytest.mark.parametrize(("policy", "kept"), [("all", 60), ("best", 2), ("last", 2), (10, 8), (1, 60)])
def test_fewer_snapshots_need_less_of_the_disk(policy, kept):
    config = configurations.build({"checkpoint": {"snapshots": policy}, "data": {"cache_limit_mb": 0}})
    needs = host_needs.needs(config, 10, 60, {"total": 2**18 * 100})
    assert needs["snapshots"] == kept
    assert needs["disk_whole_mb"] == host_needs.LOGS_MB + 600 + 100 * kept


def test_an_unknown_run_names_the_nearest_and_all(three_runs):
    assert refusal(run_names.latest_run, three_runs, "oldst") == (
        "run=oldst: no such run (did you mean oldest?); there are: oldest, a-middle, newest"
    )


def test_harmful_name_is_refused_before_the_search(three_runs):
    assert refusal(run_names.latest_run, three_runs, "../runs/oldest").startswith("run=../runs/oldest: a run name is 1 to 64 of")


def test_no_run_yet(tmp_path):
    assert refusal(run_names.latest_run, tmp_path, None) == "there is no run yet; start one with: ansible-playbook train.yml"
    assert refusal(run_names.latest_run, tmp_path, "x") == "run=x: no such run; there are: none"


# --- the whole


def test_the_plan_of_a_new_run(ask, make_folder, monkeypatch, tmp_path):
    monkeypatch.setattr(model_size, "_parameters", lambda config, classes, request, spec, weights: {"total": classes, "trainable": classes})
    root = make_folder(train={"cat": 10, "dog": 10}, test={"cat": 1, "dog": 2})
    (root / "train" / "cat" / "notes.txt").touch()
    made = plan.make_plan(ask(run="new", config="task_cnn", dataset=str(root), set="train.batch_size=4", write=False))
    assert (made.run, made.resume, made.complete, made.config_name) == ("new", False, False, "task_cnn")
    assert made.counts == {
        "workers": 2,
        "train_images": 16,
        "validation_images": 4,
        "global_batch": 8,
        "scaled_for": None,
        "steps_per_epoch": 2,
        "epochs": 30,
        "total_steps": 60,
        "held_out": None,
    }
    counts = {"train": 20, "test": 3, "ignored": 1, "left_out": 0}
    assert made.dataset == {"name": "pets", "classes": ["cat", "dog"], **counts, "digest": None, "manifest": None, "note": ""}
    assert made.parameters == {"total": 2, "trainable": 2}
    assert configurations.to_dict(configurations.build(made.config)) == made.config
    assert made.config["train"]["global_batch"] == 8
    sent = json.loads(json.dumps(to_plain(made)))
    assert to_plain(from_plain(Plan, sent)) == sent
    written = sorted(path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*") if path.is_file())
    assert set(written) == {"packs", "pets"}, "only what came of the images"


@pytest.mark.parametrize(("published", "read"), [(False, ["train", "t10k"]), (True, [])])
def test_images_already_published_are_not_unpacked(published, read, ask, make_idx, monkeypatch, tmp_path):
    """Others are read whole: what is damaged is refused before a host is touched."""
    monkeypatch.setattr(model_size, "_parameters", lambda *_: {"total": 10})
    digits, opened, read_file = make_idx(train=(0, 1) * 10, zipped=("train", "t10k")), [], idx._read
    if published:
        publish.publish(idx.Idx(str(digits)), tmp_path / "packs", False, lambda *_: None)
    monkeypatch.setattr(idx, "_read", lambda file: opened.append(file.name) or read_file(file))
    plan.make_plan(ask(run="new", set=f"data.source=idx,data.path={digits}"))
    assert [name for name in opened if "images" in name] == [f"{stem}-images-idx3-ubyte.gz" for stem in read]


def test_resumed_run_takes_its_steps_on_other_hosts(ask, existing, make_idx, monkeypatch):
    monkeypatch.setattr(model_size, "_parameters", lambda *_: {"total": 10})
    digits = make_idx(train=(0, 1) * 10)
    config = configurations.override(configurations.load(existing / "config.yml"), {"data.source": "idx", "data.path": str(digits)})
    (existing / "config.yml").write_text(configurations.dump(configurations.build(config)))
    made = plan.make_plan(ask(run="old", hosts=HOSTS))
    assert (made.resume, made.counts["global_batch"], made.counts["workers"]) == (True, 128, 3)


def test_retyped_choice_of_a_launched_run_is_told(ask, existing, make_idx, monkeypatch):
    """What is typed anew for a launched run is told with what it has."""
    monkeypatch.setattr(model_size, "_parameters", lambda *_: {"total": 10})
    digits = make_idx(train=(0, 1) * 10)
    config = configurations.override(configurations.load(existing / "config.yml"), {"data.source": "idx", "data.path": str(digits)})
    (existing / "config.yml").write_text(configurations.dump(configurations.build(config)))
    assert plan.make_plan(ask(run="old")).changes == []
    assert plan.make_plan(ask(run="old", epochs="3")).changes == []
    assert plan.make_plan(ask(run="old", epochs="90", hosts=HOSTS)).changes == ["train.epochs=90 (it has 3)", "workers=3 (it has 2)"]
    assert plan.make_plan(ask(run="old", set="train.time_limit=60")).changes == ["train.time_limit=60.0 (it has None)"]
    assert plan.make_plan(ask(run="new", epochs="90", set=f"data.source=idx,data.path={digits}")).changes == []


def test_new_batch_sizes_of_the_inventory_change_nothing(ask, existing, make_idx, monkeypatch):
    """Batch sizes that the inventory got meanwhile are no change."""
    monkeypatch.setattr(model_size, "_parameters", lambda *_: {"total": 10})
    digits = make_idx(train=(0, 1) * 10)
    config = configurations.override(configurations.load(existing / "config.yml"), {"data.source": "idx", "data.path": str(digits)})
    (existing / "config.yml").write_text(configurations.dump(configurations.build(config)))
    sized = [dataclasses.replace(host, batch_size=5) for host in HOSTS[:2]]
    assert plan.make_plan(ask(run="old", hosts=sized)).changes == []


def test_an_unknown_model_is_refused_without_building_it(ask, make_folder, monkeypatch):
    monkeypatch.setattr(model_size, "_parameters", lambda *_: pytest.fail("built"))
    assert refusal(plan.make_plan, ask(dataset=str(make_folder()), set="model.name=lectur_cnn")).startswith(
        "model.name: lectur_cnn is unknown (did you mean lecture_cnn?); it must be one of: "
    )


# --- parameter counts


def fake_run(monkeypatch, returncode=0, stdout="", stderr=""):
    ran = []

    def run(argv, **options):
        ran.append((argv, options.get("input")))
        return SimpleNamespace(returncode=returncode, stdout=stdout, stderr=stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return ran


def test_evaluate_is_refused_without_anything_to_evaluate():
    """Evaluate is refused for a model that has nothing to evaluate."""
    compiled = {"validates": False, "optimizer": None}
    config = configs.Config()
    assert refusal(checks.check_compiled, compiled, True, {}, config).startswith("evaluate=true: the model has no loss")
    checks.check_compiled(compiled, False, {}, config)
    checks.check_compiled({**compiled, "validates": True}, True, {}, config)


def test_metric_that_decides_is_one_of_models():
    compiled = {"metrics": ["loss", "auc"], "own": []}
    for asked in ("val_auc", "max:loss", "auc"):
        checks.check_monitor(compiled, asked)
    checks.check_monitor(compiled, None)
    checks.check_monitor({**compiled, "own": ["train_step"]}, "score")
    checks.check_monitor(None, "min:val_accuracy")
    assert refusal(checks.check_monitor, compiled, "val_acc") == (
        "train.monitor=val_acc: this model has no such metric; it has: loss, auc, val_loss, val_auc"
    )
    assert refusal(checks.check_monitor, None, "max:val_auc").endswith("it has: loss, accuracy, val_loss, val_accuracy")


@pytest.mark.parametrize("key", ["train.label_smoothing", "augment.mixup"])
def test_soft_labels_are_refused_for_own_losses(key):
    """Soft labels are refused for a loss of the models own."""
    compiled, config = {"loss": "mse", "own": [], "validates": True}, configurations.build(configurations.override({}, {key: 0.2}))
    assert refusal(checks.check_compiled, compiled, False, {}, config).startswith(
        f"{key}=0.2: the model is compiled with a loss of its own (mse)"
    )
    checks.check_compiled(None, False, {}, config)


def test_pictures_are_not_changed_for_own_steps():
    compiled, config = {"loss": "mse", "own": ["train_step"], "validates": True}, configurations.build({"augment": {"flip": True}})
    assert refusal(checks.check_compiled, compiled, False, {}, config).startswith("augment: the model has a train_step of its own")
    checks.check_compiled({**compiled, "own": []}, False, {}, config)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("augment.flip", True, "augment.flip: it changes images with classes, and trips has columns. Fix: a function augment(x, y, seed)"),
        ("data.bucket", 8, "data.bucket=8: trips has no column that varies in length"),
        ("train.class_weight", "balanced", "train.class_weight: y is y float32 [2,2]; it must be one class per example"),
    ],
)
def test_settings_that_do_not_fit_data_are_refused(key, value, message):
    listing = Listing("trips", [], {}, {}, "")
    spec = Spec([0, 1], (Leaf("x", "float32", (4,)), Leaf("y", "float32", (2, 2))))
    listing.table = Table(spec, 9, 3)
    assert message in refusal(checks.check_model, configurations.build(configurations.override({}, {key: value})), listing)


def test_class_counts_are_of_training_and_stay(ask, make_folder, existing):
    """Class counts are those of the training split and stay with the run."""
    root, made = make_folder(), configurations.build({"train": {"class_weight": "balanced"}, "data": {"validation_split": 0.5}})
    _, listing = plan_dataset.open_dataset(configurations.build({"data": {"source": "folder", "path": str(root)}}).data, True)
    record = PublishedData.expected(listing)
    sizes = schedule.counts(made, 2, record.train)
    counted = plan_dataset.with_class_counts(made, listing, record, sizes, Path())
    assert sum(counted.train.class_counts) == sizes.train_images < record.train
    assert plan_dataset.class_weights(counted, listing.classes).startswith(f"{listing.classes[0]} ")
    begun = configurations.override(
        configurations.load(existing / "config.yml"), {"train.class_weight": "balanced", "train.class_counts": [3, 4]}
    )
    (existing / "config.yml").write_text(configurations.dump(configurations.build(begun)))
    assert resolve.resolve(ask(run="old", set="train.class_weight=balanced").asked, existing)[0].train.class_counts == (3, 4)
    unset = plan_dataset.with_class_counts(configurations.build({"train": {"class_counts": [1, 2]}}), listing, record, sizes, Path())
    assert unset.train.class_counts is None, "of another run, whose configuration was taken"


@pytest.mark.parametrize("name", ["evaluate", "timeline"])
def test_the_end_is_not_awaited_with_detach(name):
    assert refusal(OperatorRequest.of, {name: True, "detach": "yes"}) == (
        f"{name}=true, detach=true: a command that returns at once can't wait for the end; leave one of them out"
    )


def test_parameter_counts_are_remembered_per_model_and_data(ask, monkeypatch):
    """Parameter counts are remembered by model size and classes."""
    ran = fake_run(monkeypatch, stdout='some warning\n{"total": 12, "trainable": 10}\n')
    small, large = configurations.build({"data": {"image_size": [28, 28, 1]}}), configurations.build({})
    for _ in range(2):
        assert model_size._parameters(small, 10, ask()) == {"total": 12, "trainable": 10}
    assert len(ran) == 1
    ((argv, given),) = ran
    assert argv[1:] == ["-m", "control", "parameters"]
    assert json.loads(given)["size"] == [28, 28, 1]
    model_size._parameters(small, 5, ask())
    model_size._parameters(large, 10, ask())
    assert len(ran) == 3


def test_parameter_counts_are_not_written_with_check(ask, monkeypatch, tmp_path):
    ran = fake_run(monkeypatch, stdout='{"total": 1, "trainable": 1}')
    for _ in range(2):
        model_size._parameters(configurations.build({}), 10, ask(write=False))
    assert len(ran) == 2
    assert not Path(tmp_path / "parameters").exists()


def test_model_that_cannot_be_built_shows_reason(ask, monkeypatch):
    fake_run(monkeypatch, returncode=1, stderr="lots\nof\nlines\n1\n2\n3\nTypeError: too small\n")
    message = refusal(model_size._parameters, configurations.build({}), 10, ask())
    assert message == "model lecture_cnn: can't be built:\nlines\n1\n2\n3\nTypeError: too small"
    fake_run(monkeypatch, returncode=1, stderr="lots\nerror: model.filters: 0 is not allowed\n")
    assert refusal(model_size._parameters, configurations.build({}), 10, ask()) == "model.filters: 0 is not allowed"


def test_refusals_of_what_was_typed_are_configuration_errors():
    with pytest.raises(ConfigError, match="workers=9"):
        choose(workers="9")


# --- no configuration named


def pictures(root, count, size, mode="RGB", splits=("train", "test")):
    """`count` images of each of two classes; `size` is width and height."""
    for split in splits:
        for name in ("cat", "dog"):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                Image.new(mode, size, number % 200).save(root / split / name / f"{number}.png")
    return root


@pytest.fixture
def planned(ask, monkeypatch):
    """The plan of a dataset, without building its model."""
    monkeypatch.setattr(model_size, "_parameters", lambda *_: {"total": 1, "trainable": 1})
    return lambda **options: plan.make_plan(ask(**options))


@pytest.mark.parametrize(
    ("size", "mode", "config", "image_size"),
    [
        ((120, 90), "RGB", "deep_cnn", [72, 96, 3]),
        ((90, 120), "P", "deep_cnn", [96, 72, 3]),
        ((64, 64), "RGB", "deep_cnn", [64, 64, 3]),
        ((640, 100), "RGBA", "deep_cnn", [32, 96, 3]),
        ((200, 200), "L", "deep_cnn", [96, 96, 1]),
        ((32, 32), "RGB", "task_cnn", [32, 32, 3]),
        ((28, 28), "RGB", "task_cnn", [32, 32, 3]),
        ((28, 28), "L", "lecture_cnn", [28, 28, 1]),
    ],
)
def test_the_dataset_decides_what_is_trained(size, mode, config, image_size, planned, tmp_path):
    made = planned(dataset=str(pictures(tmp_path / "photos", 24, size, mode)))
    assert (made.config_name, made.config["model"]["name"]) == (config, config)
    assert made.config["data"]["image_size"] == image_size
    assert made.run.startswith(config.replace("_", "-"))
    images = 48 - round(48 * 0.2)
    assert made.counts["steps_per_epoch"] == math.ceil(images / made.counts["global_batch"])
    kind = "grey" if mode == "L" else "colour"
    assert made.choice["why"].startswith(f"{config}: {kind} images of about {size[0]}x{size[1]}")
    assert made.choice["why"].endswith("; choose another with -e config=NAME")
    assert f"configuration  {config}: {kind} images of about" in plan_text.plan(made, "runs")
    assert made.warnings == [] if config != "lecture_cnn" else made.warnings


def test_what_is_typed_wins_over_what_fits_dataset(planned, tmp_path):
    root = str(pictures(tmp_path / "photos", 24, (120, 90)))
    made = planned(dataset=root, epochs="7", set="data.image_size=[40,40,3],train.batch_size=5")
    assert made.config["data"]["image_size"] == [40, 40, 3]
    assert (made.config["train"]["epochs"], made.config["train"]["batch_size"]) == (7, 5)
    named = planned(dataset=root, config="task_cnn")
    assert named.choice is None
    assert (named.config["data"]["image_size"], named.config["train"]["batch_size"]) == ([32, 32, 3], 64)


def test_photo_on_its_side_is_turned_upright(planned, tmp_path):
    root = pictures(tmp_path / "photos", 3, (120, 90))
    for path in root.rglob("*.png"):
        with Image.open(path) as image:
            exif = image.getexif()
            exif[0x0112] = 6
            image.save(path.with_suffix(".jpg"), exif=exif)
        path.unlink()
    made = planned(dataset=str(root))
    assert made.config["data"]["image_size"] == [96, 72, 3]
    assert shape_of(path.with_suffix(".jpg").read_bytes()) == decode(path.with_suffix(".jpg").read_bytes()).shape == (120, 90, 3)


def test_a_large_dataset_is_seen_fewer_times(monkeypatch):
    listing = Listing("x", ["a", "b"], {"train": ["n"] * 40_000, "test": []}, {"train": [], "test": []}, "", (32, 32, 3))
    assert preset.choose(None, listing).overrides == {"data.image_size": [32, 32, 3], "train.epochs": 30}
    listing.shape = (96, 96, 3)
    assert preset.choose(None, listing).overrides == {"data.image_size": [96, 96, 3], "train.epochs": 5}
    listing.shape = (28, 28, 1)
    assert preset.choose(None, listing) == preset.Choice(
        "lecture_cnn", {}, "lecture_cnn: grey images of about 28x28; choose another with -e config=NAME"
    )


def test_without_dataset_it_is_lecture_as_it_was(planned, ask, monkeypatch):
    monkeypatch.setattr(plan_dataset.fashion_mnist, "is_here", lambda: False)
    made = planned(write=False)
    assert (made.config_name, made.counts["steps_per_epoch"], made.counts["epochs"]) == ("lecture_cnn", 70, 3)
    assert (made.config["data"]["image_size"], made.warnings) == ([28, 28, 1], [])


def test_unreadable_images_do_not_decide(make_folder):
    root = make_folder()
    for path in root.rglob("*.png"):
        path.write_bytes(b"no image")
    source = Folder(str(root))
    assert preset.choose(source, source.scan()).config == "task_cnn"


def test_own_model_is_given_images_unscaled(planned, tmp_path):
    """A model of one's own is given images at their size."""
    (tmp_path / "mine.py").write_text("def build(size, classes): pass\n")
    made = planned(dataset=str(pictures(tmp_path / "photos", 24, (120, 90))), model=f"{tmp_path / 'mine.py'}:build")
    assert (made.config["model"]["name"], made.config["data"]["image_size"]) == ("own", [72, 96, 3])
    assert (made.config["optimizer"]["learning_rate"], made.config["train"]["epochs"]) == (0.001, 3)


def test_unusual_splits_are_in_the_plan(planned, tmp_path):
    made = planned(dataset=str(pictures(tmp_path / "photos", 20, (32, 32), splits=("train", "val"))))
    assert (made.counts["train_images"], made.counts["validation_images"], made.dataset["test"]) == (32, 40, 8)
    shown = plan_text.plan(made, "runs")
    assert (
        "split          40 images in val/ are for validation; there is no test/, so data.test_split=0.2 of each class is held out for "
        "testing (8 images" in shown
    )


def test_shares_held_out_are_in_the_plan(planned, tmp_path):
    """80% for training and 10% for validation of class folders alone, as docs/reference/examples.md has it."""
    root = pictures(tmp_path / "photos", 20, (32, 32), splits=("",))
    made = planned(dataset=str(root), set="data.test_split=0.1,data.validation_split=0.111")
    shown = plan_text.plan(made, "runs")
    assert "2 classes, 32 training, 4 validation, 4 test images" in shown
    assert "split          there is no test/, so data.test_split=0.1 of each class is held out for testing (4 images" in shown
    assert made.warnings == []


def test_shares_of_own_splits_have_no_effect(planned, tmp_path):
    root = pictures(tmp_path / "photos", 20, (32, 32), splits=("train", "val", "test"))
    assert planned(dataset=str(root), set="data.test_split=0.2,data.validation_split=0.3").warnings == [
        "data.validation_split=0.3 has no effect: photos has validation images of its own",
        "data.test_split=0.2 has no effect: photos has test images of its own",
    ]


def test_run_is_not_continued_with_other_test(ask, existing):
    message = refusal(resolve.resolve, ask(run="old", set="data.test_split=0.1").asked, existing)
    assert message.startswith("run=old: this run exists with another data.test_split. Leave out what sets it to continue it, ")


@pytest.mark.parametrize(
    ("options", "warnings"),
    [
        ({"set": "train.batch_size=12"}, []),
        (
            {"set": "train.batch_size=64"},
            [
                "the global batch of 128 images on 2 workers exceeds the 38 training images: every step takes all of them. "
                "Fix: use a smaller one, as in -e set=train.batch_size=4"
            ],
        ),
        (
            {"set": "train.global_batch=39"},
            [
                "the global batch of 39 images on 2 workers exceeds the 38 training images: every step takes all of them. "
                "Fix: use a smaller one, as in -e set=train.global_batch=9"
            ],
        ),
        (
            {"set": "train.batch_size=8,train.global_batch=20"},
            ["train.batch_size=8 has no effect: train.global_batch=20 decides. Fix: -e set=train.batch_size=8,train.global_batch=null"],
        ),
        ({"set": "train.batch_size=10,train.global_batch=20"}, []),
    ],
)
def test_batch_is_said_where_it_misleads(options, warnings, planned, tmp_path):
    assert planned(dataset=str(pictures(tmp_path / "photos", 24, (32, 32))), config="task_cnn", **options).warnings == warnings


def test_batch_of_configuration_of_global_one_is_said(planned, tmp_path):
    root = str(pictures(tmp_path / "photos", 200, (32, 32)))
    (warning,) = planned(dataset=root, config="resnet_cifar", set="train.batch_size=8").warnings
    assert warning.startswith("train.batch_size=8 has no effect: train.global_batch=128 decides. Fix: ")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"recovery": {"max_restarts": 0}},
            "=0 forbids that. Fix: -e set=recovery.elastic=true,recovery.max_restarts=20",
        ),
        ({"train": {"batch_sizes": [4, 4, 8]}}, "its own size (4, 4, 8), which says nothing of fewer workers. Fix: leave them out, or "),
        ({"recovery": {"min_workers": 4}}, "recovery.min_workers=4: the run has 3 workers. Fix: at most as many, or more workers"),
    ],
)
def test_run_that_cannot_lose_a_host_is_refused(settings, words):
    """A run that could not go on without a host is refused."""
    recovery = {"elastic": True, "max_restarts": 5} | settings.get("recovery", {})
    with pytest.raises(ConfigError) as refused:
        checks.check_elastic(configurations.build(settings | {"recovery": recovery}), 3)
    assert words in str(refused.value)


def test_host_may_be_away_less_than_the_wait():
    """A host may be away for less time than the run waits at all."""
    with pytest.raises(ConfigError, match=r"recovery.elastic_wait: 400.0 is not allowed; it must be below recovery.rejoin_wait \(300\)"):
        configurations.build({"recovery": {"elastic": True, "elastic_wait": 400}})


def test_run_with_all_settings_of_elastic_one_passes():
    checks.check_elastic(
        configurations.build({"recovery": {"elastic": True, "max_restarts": 5, "min_workers": 3}, "train": {"batch_sizes": "auto"}}), 3
    )


TABLE = Table(Spec([0, 1], (Leaf("x", "float32", (4,)), Leaf("y", "int32", ()))), 10, 10)


@pytest.mark.parametrize(
    ("table", "targets", "takes", "odd"),
    [
        (TABLE, {"train": [0, 2], "test": [0, 2]}, 3, None),
        (TABLE, {"train": [0, 3]}, None, None),
        (TABLE, {}, 3, None),
        (TABLE, {"train": [0, 2], "test": [0, 3]}, 3, "y of test has the class 3, and the model's output has 3 numbers"),
        (TABLE, {"train": [-1, 2]}, 3, "y of train has the class -1, "),
        (TABLE, {"train": [1, 3]}, 3, "y of train has the class 3, "),
        (None, {}, 2, None),
        (None, {}, 1, "y of train has the class 1, and the model's output has 1 numbers"),
    ],
)
def test_a_class_without_an_output_is_refused(table, targets, takes, odd):
    listing = Listing("mine", [] if table else ["cat", "dog"], {}, {}, "", table=table, targets=targets)
    config = configurations.build({"model": {"name": "own", "file": "mine.py", "function": "build", "source": "def build():\n    pass\n"}})
    if odd is None:
        checks.check_classes(listing, takes, config)
    else:
        assert odd in refusal(checks.check_classes, listing, takes, config)


def test_refusal_tells_what_examples_have():
    with pytest.raises(ConfigError, match=r"^a step fails\nx has strings$"), model_size.warned(["x has strings"]):
        raise ConfigError("a step fails")


def test_settings_that_are_not_the_configurations_are_shown():
    given = {"train.batch_size": 7, "optimizer.learning_rate": 0.5, "data.path": "/x"}
    asked = configurations.build(configurations.override(configurations.load(configurations.find("lecture_cnn")), given))
    assert resolve.differing("lecture_cnn", resolve.with_model_defaults(asked), given) == [
        "train.batch_size=7 instead of 64",
        "optimizer.learning_rate=0.5 instead of 0.001",
    ]
