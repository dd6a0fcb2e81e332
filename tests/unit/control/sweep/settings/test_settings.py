"""Settings to try: parsed, combined, drawn, resolved and named; hostile values included."""

import re

import pytest

from control.common import configurations
from control.sweep.settings import settings_plan, trial_settings
from control.sweep.settings.settings_plan import Wanted
from control.sweep.settings.trial_settings import MOST, Range, Settings
from tests.unit.refusals import refusal_of_typed as refusal
from trainer.host.claims import RUN_NAME

BASE = configurations.to_dict(configurations.build(configurations.load(configurations.find("task_cnn"))))


def trials(vary, count=None, seed=1, base=BASE, given=None):
    space = trial_settings.parse(vary)
    wanted = Wanted(space, count, Settings(given or {}), [["node1"]], [], "task_cnn")
    return wanted.trials("pi", base, trial_settings.combinations(space, count, seed))


# --- what is typed


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("optimizer.learning_rate=0.1,1e-2", {"optimizer.learning_rate": (0.1, 0.01)}),
        ("seed=1,2 ; train.batch_size = 32, 64", {"seed": (1, 2), "train.batch_size": (32, 64)}),
        ("schedule.decay=[[2,0.1],[3,0.01]],[]", {"schedule.decay": ([[2, 0.1], [3, 0.01]], [])}),
        ("""model.word='a,b',"c;d",it's""", {"model.word": ("a,b", "c;d", "it's")}),
        ("train.steps=null,10", {"train.steps": (None, 10)}),
        ("telemetry.split_every=0", {"telemetry.profile_every": (0,)}),
        ("optimizer.learning_rate=log(0.0001,0.1)", {"optimizer.learning_rate": Range("log", 0.0001, 0.1)}),
        ("model.filters=int(8,64)", {"model.filters": Range("int", 8, 64)}),
        ("optimizer.momentum=uniform(0,0.9)", {"optimizer.momentum": Range("uniform", 0, 0.9)}),
    ],
)
def test_what_is_varied(text, space):
    assert trial_settings.parse(text) == space


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "vary: '' is not KEY=VALUE,VALUE; several keys are separated by ;, as in"),
        ("optimizer.learning_rate", "vary: 'optimizer.learning_rate' is not KEY=VALUE,VALUE"),
        ("seed=1;", "vary: '' is not KEY=VALUE"),
        ("seed=1,,2", "vary: seed: '' is no value; values are YAML, separated by commas"),
        ("seed=[1", "vary: seed: '[1' is no value"),
        ("model.day=2026-11-25", "vary: model.day: '2026-11-25' is no value"),
        ("model.x=!!python/object/apply:os.system [id]", "vary: model.x: '!!python/object/apply:os.system [id]' is no value"),
        ("seed=1;seed=2", "vary: seed appears twice; give all of its values at once"),
        ("data={path: /etc}", "vary: data is a section; name one of its keys"),
        ("data.path=/etc,/root", "vary: data.path=/etc,/root: trials on other data can't be compared. Fix: "),
        (
            "data.test_split=0.1,0.2",
            "vary: data.test_split=0.1,0.2: trials with other test examples can't be compared. Fix: set it for all",
        ),
        ("train.monitor=loss", "vary: train.monitor=loss: it says which trial is best. Fix: "),
        (
            "optimizer.learning_rate=log(0,1)",
            "vary: optimizer.learning_rate=log(0,1): expected log(A,B) with 0 < A < B, as in log(0.0001,0.1)",
        ),
        ("optimizer.learning_rate=uniform(1,1)", "expected uniform(A,B) with A < B"),
        ("optimizer.learning_rate=uniform(0,inf)", "expected uniform(A,B) with A < B"),
        ("train.batch_size=int(1.5,4)", "expected int(A,B) with whole numbers A < B"),
        ("train.batch_size=int(1,4),8", "expected int(A,B) with whole numbers A < B"),
        ("seed=\x1b[2J;\x1b[2J=1,", "vary: seed: '\\x1b[2J;\\x1b[2J=1,' is no value"),
    ],
)
def test_what_can_not_be_varied(text, message):
    shown = refusal(trial_settings.parse, text)
    assert message in shown
    assert "\x1b" not in shown


def test_key_is_set_for_all_trials_or_varied():
    options = {"set": "seed=2,train.batch_size=8", "epochs": "4"}
    assert settings_plan._given(options, ["optimizer.momentum"]) == {"seed": 2, "train.batch_size": 8, "train.epochs": 4}
    assert refusal(settings_plan._given, options, ["seed"]) == "vary: seed is also set for all trials (2); leave it out of one of them"
    assert refusal(settings_plan._given, options, ["train.epochs"]).startswith("vary: train.epochs is also set for all trials (4)")


# --- which combinations


def test_every_combination_in_order():
    actual = trial_settings.combinations(trial_settings.parse("seed=1,2;train.batch_size=32,64,128"), None, 1)
    assert [(one["seed"], one["train.batch_size"]) for one in actual] == [(1, 32), (1, 64), (1, 128), (2, 32), (2, 64), (2, 128)]


SPACE = "optimizer.learning_rate=log(0.0001,0.1);train.batch_size=32,64;model.filters=int(8,16);optimizer.momentum=uniform(0.5,0.9)"


def test_draws_come_from_the_seed_and_extend():
    """Draws come from the seed and more begin with the same."""
    space = trial_settings.parse(SPACE)
    assert trial_settings.combinations(space, 20, 7) == trial_settings.combinations(space, 30, 7)[:20]
    assert trial_settings.combinations(space, 20, 7) != trial_settings.combinations(space, 20, 8)


def test_draws_stay_within_their_ranges():
    drawn = trial_settings.combinations(trial_settings.parse(SPACE), 400, 3)
    assert len({one.json for one in drawn}) == 400
    rates = [one["optimizer.learning_rate"] for one in drawn]
    assert 0.0001 <= min(rates) < 0.0002
    assert 0.05 < max(rates) <= 0.1
    # Half of them are below the middle of the logarithms.
    assert 160 <= sum(rate < 0.00316 for rate in rates) <= 240
    assert all(float(f"{rate:.4g}") == rate for rate in rates)
    assert {one["model.filters"] for one in drawn} == set(range(8, 17))
    assert {one["train.batch_size"] for one in drawn} == {32, 64}
    assert all(0.5 <= one["optimizer.momentum"] <= 0.9 for one in drawn)


@pytest.mark.parametrize(
    ("vary", "count", "message"),
    [
        (
            f"seed={','.join(map(str, range(1000)))}",
            None,
            f"vary: these are 1,000 combinations, and a sweep has at most {MOST}; give fewer",
        ),
        ("seed=1,2", 3, "trials=3: there are only 2 combinations; leave trials out to try all"),
        ("seed=int(1,9)", None, "vary: seed=int(1,9): numbers are drawn from a range at random; say how many trials: -e trials=20"),
        ("seed=int(1,3)", 4, "trials=4: vary has hardly more than 3 different combinations; ask for fewer, or widen a range"),
        ("seed=int(1,900)", 501, "trials=501: a sweep has at most 500; ask for fewer"),
    ],
)
def test_too_many_or_too_few(vary, count, message):
    assert refusal(trial_settings.combinations, trial_settings.parse(vary), count, 1).startswith(message)


def test_all_of_a_small_space_can_be_drawn():
    assert sorted(one["seed"] for one in trial_settings.combinations(trial_settings.parse("seed=1,2,3"), 3, 5)) == [1, 2, 3]


# --- a trial's configuration


def test_each_trial_has_its_configuration():
    actual = trials("optimizer.learning_rate=0.1,0.01;train.batch_size=32,64")
    assert [(one.optimizer.learning_rate, one.train.batch_size) for one in actual.values()] == [
        (0.1, 32),
        (0.1, 64),
        (0.01, 32),
        (0.01, 64),
    ]
    assert {one.model["name"] for one in actual.values()} == {"task_cnn"}


def test_another_model_has_only_its_own_options():
    deep = configurations.override(BASE, {"model": {"name": "deep_cnn", "filters": 8, "stages": 3}})
    actual = list(trials("model.name=cnn,deep_cnn", base=deep).values())
    assert [one.model for one in actual] == [{"name": "cnn", "dropout": 0.1}, {"name": "deep_cnn", "filters": 32, "stages": 3}]
    actual = list(trials("model.name=deep_cnn", base=deep, given={"model.filters": 8}).values())
    assert actual[0].model["filters"] == 8


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ("optimizer.learning_rat=1", "vary, learning_rat=1: optimizer.learning_rat: unknown key (did you mean optimizer.learning_rate?)"),
        ("workers=1,2", "vary, workers=1: workers: unknown key"),
        ("optimizer.learning_rate=0.1,-1", "vary, learning_rate=-1: optimizer.learning_rate: -1.0 is not allowed; it must be at least 0"),
        ("optimizer.learning_rate=.nan", "optimizer.learning_rate: nan is not allowed"),
        ("optimizer.name=sgd,adm", "vary, name=adm: optimizer.name: adm is unknown (did you mean adam?)"),
        ("train.batch_size=many", "vary, batch_size=many: train.batch_size: 'many' is not an integer"),
        (
            "optimizer.name=adamw;optimizer.weight_decay=0.1,0",
            "vary, name=adamw weight_decay=0: optimizer.weight_decay: 0.0 is not allowed",
        ),
        ("model.filters=32", "vary, filters=32: model.filters: task_cnn has no such option"),
        ("model.name=cnn;model.dropout=0.5,many", "vary, name=cnn dropout=many: model.dropout: 'many' is not a number"),
        ("optimizer.learning_rate=0.1,0.10", "vary: learning_rate=0.1 appears twice; give each value once"),
    ],
)
def test_values_that_a_key_refuses(vary, message):
    assert message in refusal(trials, vary)


def test_a_batch_size_without_effect():
    base = configurations.override(BASE, {"train.global_batch": 100})
    assert refusal(trials, "train.batch_size=8", None, 1, base) == (
        "vary, batch_size=8: train.batch_size has no effect: train.global_batch=100 decides. Fix: vary train.global_batch, "
        "or -e set=train.global_batch=null"
    )


# --- names


def test_a_run_is_called_by_its_values():
    names = list(trials("optimizer.learning_rate=0.1,0.01;train.batch_size=32"))
    assert [re.sub(r"-\w{8}$", "", name) for name in names] == ["pi.0.1-32", "pi.0.01-32"]
    assert list(trials("train.batch_size=32;optimizer.learning_rate=0.01")) == names[1:]


@pytest.mark.parametrize(
    "value",
    [
        "../../etc/passwd",
        "$(touch pwned)",
        "{{ lookup('pipe', 'id') }}",
        "-rf",
        "a\nb",
        "ü" * 90,
        "",
        ".",
        "x" * 200,
        "%(x)s",
        "\x1b]0;x\x07",
    ],
)
def test_hostile_values_stay_in_the_configuration(value):
    one, other = ({"model.word": word, "train.batch_size": 32} for word in (value, f"{value} "))
    names = [Settings(each).run_name("a" * 32) for each in (one, other)]
    assert names[0] != names[1]
    assert all(RUN_NAME.fullmatch(name) for name in names)
    assert Settings(one).label.isprintable()
    options = settings_plan.first({"set": "seed=2"}, one)
    assert configurations.parse_set(options["set"]) == {"seed": 2, **one}


def test_short_names_are_unique():
    keys = ["optimizer.learning_rate", "optimizer.name", "model.name"]
    assert list(trial_settings.short_keys(keys).values()) == ["learning_rate", "optimizer.name", "model.name"]


# --- what a sweep is asked for


HOSTS = ["node1", "node2", "node3", "node4", "node5"]


@pytest.mark.parametrize(
    ("workers", "groups", "idle"),
    [
        ({}, [HOSTS], []),
        ({"workers": "2"}, [["node1", "node2"], ["node3", "node4"]], ["node5"]),
        ({"workers": "1"}, [[name] for name in HOSTS], []),
        ({"workers": "3"}, [["node1", "node2", "node3"]], ["node4", "node5"]),
    ],
)
def test_each_trial_has_hosts_of_its_own(workers, groups, idle):
    wanted = Wanted.of({"vary": "seed=1,2", **workers}, HOSTS)
    assert (wanted.groups, wanted.idle, wanted.workers) == (groups, idle, len(groups[0]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": "6"}, "workers=6: each trial of a sweep over settings trains on that many hosts, and the inventory has 5; add hosts"),
        ({"workers": "1-3"}, "workers=1-3: expected a whole number from 1"),
        ({"trials": "0"}, "trials=0: expected a whole number from 1"),
        ({"repeats": "3"}, "repeats=3: a sweep over settings (vary) takes no such variable; it takes: sweep, vary, trials, workers"),
    ],
)
def test_requests_that_are_refused(options, message):
    assert refusal(Wanted.of, {"vary": "seed=1", **options}, HOSTS).startswith(message)


@pytest.mark.parametrize("options", [{"trials": "4"}, {"weights": "a.keras"}])
def test_options_without_anything_to_vary(options):
    ((name, value),) = options.items()
    assert refusal(settings_plan.refuse_without_vary, options) == (
        f"{name}={value}: it belongs to a sweep over settings; leave it out, or say what to vary, as in "
        "-e 'vary=optimizer.learning_rate=0.1,0.01;train.batch_size=32,64'"
    )


def test_sweep_continued_keeps_what_it_was_asked():
    asked = {"vary": "seed=int(1,9)", "trials": "4", "config": "task_cnn", "workers": "2"}
    assert settings_plan.continued({"sweep": "pi"}, asked) == {"sweep": "pi", **asked}
    assert settings_plan.continued({"trials": "6"}, asked)["trials"] == "6"
    assert "trials" not in settings_plan.continued({"vary": "seed=1,2"}, asked)
