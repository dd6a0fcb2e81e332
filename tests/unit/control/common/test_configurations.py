"""Configurations: what is refused and how it is said, `set=`, files, round trips."""

import pytest

from control.common import configurations
from tests.unit.refusals import refusal_of_typed as refusal
from trainer.common.errors import ConfigError
from trainer.config import loading

CLASS_WEIGHTS = "balanced, or numbers from 0 by class, not all of them 0, as in {cat: 2.5, dog: 1}"


def built(dotted, value):
    return configurations.build(configurations.override({}, {dotted: value}))


@pytest.mark.parametrize(
    ("raw", "start", "near"),
    [
        ({"optimzer": {}}, "optimzer: unknown key", "(did you mean optimizer?)"),
        ({"train": {"epoch": 3}}, "train.epoch: unknown key", "(did you mean train.epochs?)"),
        ({"train": {"bach_size": 3}}, "train.bach_size: unknown key", "(did you mean train.batch_size?)"),
        ({"data": {"image_sise": [1, 1, 1]}}, "data.image_sise: unknown key", "(did you mean data.image_size?)"),
        ({"epochs": 3}, "epochs: unknown key", "(did you mean train.epochs?)"),
        ({"train": {"learning_rate": 0.1}}, "train.learning_rate: unknown key", "(did you mean optimizer.learning_rate?)"),
        ({7: 1}, "7: unknown key", "known: seed, model, data, augment, train"),
    ],
)
def test_unknown_key_names_the_nearest(raw, start, near):
    message = refusal(configurations.build, raw)
    assert message.startswith(start)
    assert near in message


def test_unknown_key_lists_known_ones_of_its_section():
    assert refusal(configurations.build, {"checkpoint": {"zzz": 1}}).endswith(
        "; known: checkpoint.every_steps, checkpoint.every_seconds, checkpoint.keep, checkpoint.copy, checkpoint.snapshots"
    )


def test_unknown_key_unlike_others_has_no_hint():
    """Unknown key that is like none has no hint."""
    assert "did you mean" not in refusal(configurations.build, {"checkpoint": {"zzz": 1}})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("train.epochs", "three", "train.epochs: 'three' is not an integer"),
        ("train.epochs", 3.0, "train.epochs: 3.0 is not an integer"),
        ("train.epochs", True, "train.epochs: True is not an integer"),
        ("train.epochs", None, "train.epochs: None is not an integer"),
        ("train.steps", "x", "train.steps: 'x' is not an integer or null"),
        ("optimizer.learning_rate", "fast", "optimizer.learning_rate: 'fast' is not a number"),
        ("optimizer.learning_rate", False, "optimizer.learning_rate: False is not a number"),
        ("data.allow_bad_images", 1, "data.allow_bad_images: 1 is not true or false"),
        ("data.path", 5, "data.path: 5 is not a text or null"),
        ("data.image_size", 32, "data.image_size: 32 is not a list"),
        ("data.image_size", [32, "x", 3], "data.image_size: [32, 'x', 3] is not a list"),
        ("data.limit_train", "half", "data.limit_train: 'half' is not an integer or a number or null"),
        ("schedule.decay", [["x", 1]], "schedule.decay: [['x', 1]] is not a list"),
        ("model", "lecture_cnn", "model: 'lecture_cnn' is not a mapping"),
    ],
)
def test_wrong_type_names_key_value_and_type(key, value, message):
    assert refusal(built, key, value) == message


@pytest.mark.parametrize("value", [["cat"], {"cat": True}, {True: 1.0}, {"cat": "much"}, 2.0])
def test_class_weights_are_word_or_numbers_by_class(value):
    assert refusal(built, "train.class_weight", value).endswith("is not a text or a mapping of names to numbers or null")


def test_class_weights_are_kept_as_numbers_by_text(tmp_path):
    config = configurations.build(configurations.override({}, configurations.parse_set("train.class_weight={0: 1, dog: 2.5}")))
    assert config.train.class_weight == {"0": 1.0, "dog": 2.5}
    (tmp_path / "config.yml").write_text(configurations.dump(config))
    assert configurations.build(configurations.load(tmp_path / "config.yml")) == config
    assert refusal(built, "train.class_weight", "balancd") == (
        f"train.class_weight: balancd is unknown (did you mean balanced?); it must be {CLASS_WEIGHTS}"
    )


def test_saturation_needs_colours():
    grey = {"data": {"image_size": [8, 8, 1]}, "augment": {"saturation": 0.5}}
    assert refusal(configurations.build, grey).startswith("augment.saturation: 0.5 is not allowed; it must be 0 for images of one channel")


def test_section_that_is_no_mapping_is_named():
    assert refusal(configurations.build, {"data": None}) == "data: expected a mapping, got None"


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("seed", -1, "at least 0"),
        ("data.image_size", [32, 32], "[height, width, 1 or 3]"),
        ("data.image_size", [32, 32, 2], "[height, width, 1 or 3]"),
        ("data.image_size", [0, 32, 3], "[height, width, 1 or 3]"),
        ("data.validation_split", 0.0, "between 0 and 1"),
        ("data.validation_split", 1.0, "between 0 and 1"),
        ("data.test_split", 0.0, "between 0 and 1"),
        ("data.test_split", 1.5, "between 0 and 1"),
        ("data.limit_train", 0, "a fraction up to 1.0 or a count from 1"),
        ("data.limit_train", 1.5, "a fraction up to 1.0 or a count from 1"),
        ("data.limit_train", 0.0, "a fraction up to 1.0 or a count from 1"),
        ("data.cache_limit_mb", -1, "at least 0"),
        ("train.epochs", 0, "at least 1"),
        ("train.steps", 0, "null or above 0"),
        ("train.steps_per_epoch", -5, "null or above 0"),
        ("train.global_batch", 0, "null or above 0"),
        ("train.time_limit", 0.0, "null or above 0"),
        ("train.batch_size", 0, "at least 1"),
        ("train.steps_per_call", 0, "from 1 to 1000"),
        ("train.steps_per_call", 1001, "from 1 to 1000"),
        ("optimizer.learning_rate", -0.1, "at least 0"),
        ("optimizer.learning_rate", "nan", "at least 0"),
        *((key, "inf", "finite") for key in ("optimizer.learning_rate", "optimizer.weight_decay", "schedule.warmup_epochs")),
        ("optimizer.momentum", 1.0, "from 0 to below 1"),
        ("optimizer.momentum", -0.5, "from 0 to below 1"),
        ("optimizer.weight_decay", -1.0, "at least 0"),
        ("schedule.warmup_epochs", -1.0, "at least 0"),
        ("schedule.decay", [[1, 2, 3]], "a list of [epoch, factor]"),
        ("data.bucket", 0, "at least 1"),
        ("augment.brightness", 1.5, "from 0 to 1"),
        ("augment.mixup", -0.2, "from 0 to 100"),
        ("train.label_smoothing", 1.0, "from 0 to below 1"),
        ("train.class_weight", {}, CLASS_WEIGHTS),
        ("train.class_weight", {"cat": 0}, CLASS_WEIGHTS),
        ("train.class_weight", {"cat": -1, "dog": 1}, CLASS_WEIGHTS),
        ("train.class_weight", {"cat": "nan"}, CLASS_WEIGHTS),
        ("checkpoint.keep", 0, "at least 1"),
        ("checkpoint.every_steps", 0, "null or at least 1"),
        ("checkpoint.every_seconds", 0.0, "null or above 0"),
        ("telemetry.sample_every", 0, "at least 1"),
        ("telemetry.profile_every", -1, "at least 0"),
    ],
)
def test_value_out_of_range_names_the_rule(key, value, rule):
    message = refusal(built, key, value)
    assert message.startswith(f"{key}: ")
    assert message.endswith(f" is not allowed; it must be {rule}")
    if isinstance(value, int | float | str):
        assert f": {value} is" in message


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "train.precision",
            "float16",
            "train.precision: float16 is unknown (did you mean float32?); it must be one of: float32, mixed_bfloat16",
        ),
        (
            "optimizer.name",
            "sdg",
            "optimizer.name: sdg is unknown (did you mean sgd?); it must be one of: " + ", ".join(configurations.OPTIMIZERS),
        ),
        ("schedule.scaling", "linar", "schedule.scaling: linar is unknown (did you mean linear?); it must be one of: none, linear, sqrt"),
        ("reduction.name", "zzz", "reduction.name: zzz is unknown; it must be one of: auto, packed, half, powersgd"),
    ],
)
def test_unknown_choice_lists_the_known_ones(key, value, message):
    assert refusal(built, key, value) == message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 0),
        ("seed", 2**63 - 1),
        ("data.limit_train", 1),
        ("data.limit_train", 1.0),
        ("data.limit_train", None),
        ("data.cache_limit_mb", 0),
        ("optimizer.momentum", 0.0),
        ("train.steps_per_call", 1000),
        ("checkpoint.every_steps", 1),
        ("checkpoint.every_seconds", 0.5),
        *(("checkpoint.snapshots", policy) for policy in ("all", "best", "last", 1, 25)),
    ],
)
def test_values_at_the_limits_are_kept(key, value):
    section, _, name = key.partition(".")
    config = built(key, value)
    kept = getattr(getattr(config, section), name) if name else getattr(config, section)
    assert kept == value
    assert type(kept) is type(value)


def test_numbers_become_what_the_field_holds():
    config = configurations.build(
        {"optimizer": {"learning_rate": "1e-3", "momentum": 0}, "schedule": {"decay": [[82, "1e-1"], [123, 0.01]]}}
    )
    assert config.optimizer.learning_rate == 0.001
    assert isinstance(config.optimizer.momentum, float)
    assert config.schedule.decay == ((82.0, 0.1), (123.0, 0.01))


def test_model_needs_a_name():
    assert refusal(configurations.build, {"model": {}}) == "model.name: None is not allowed; it must be the name of a model"


@pytest.mark.parametrize(
    ("text", "actual"),
    [
        ("", {}),
        ("seed=2", {"seed": 2}),
        ("train.batch_size=32,seed=2", {"train.batch_size": 32, "seed": 2}),
        (" seed = 2 , train.epochs = 3 ", {"seed": 2, "train.epochs": 3}),
        ("data.image_size=[28,28,1],seed=2", {"data.image_size": [28, 28, 1], "seed": 2}),
        ("schedule.decay=[[82,0.1],[123,0.01]],seed=2", {"schedule.decay": [[82, 0.1], [123, 0.01]], "seed": 2}),
        ("model={name: deep_cnn, stages: 2},seed=2", {"model": {"name": "deep_cnn", "stages": 2}, "seed": 2}),
        ('data.path="/a, b",seed=2', {"data.path": "/a, b", "seed": 2}),
        ("data.path='x=[1,2',seed=2", {"data.path": "x=[1,2", "seed": 2}),
        ("data.path='it''s, x',seed=2", {"data.path": "it's, x", "seed": 2}),
        ("model={name: 'a, b', note: o'neil},seed=2", {"model": {"name": "a, b", "note": "o'neil"}, "seed": 2}),
        ("data.path= '/a, b' ,seed=2", {"data.path": "/a, b", "seed": 2}),
        ("data.path=/a=b", {"data.path": "/a=b"}),
        ("train.steps=null,data.path=", {"train.steps": None, "data.path": None}),
        ("data.allow_bad_images=true", {"data.allow_bad_images": True}),
        ("seed=1,seed=2", {"seed": 2}),
        ("seed=1,,", {"seed": 1}),
    ],
)
def test_set_is_split_at_outer_commas(text, actual):
    assert configurations.parse_set(text) == actual


def test_set_with_an_apostrophe_inside_a_value():
    assert configurations.parse_set("data.path=/home/o'neil,seed=2") == {"data.path": "/home/o'neil", "seed": 2}


def test_set_with_a_scientific_number():
    assert (
        configurations.build(configurations.override({}, configurations.parse_set("optimizer.learning_rate=1e-3"))).optimizer.learning_rate
        == 0.001
    )


@pytest.mark.parametrize(("text", "part"), [("seed", "'seed'"), ("seed=2,=3", "'=3'"), ("a=1,nonsense,b=2", "'nonsense'")])
def test_set_without_key_or_value_names_the_part(text, part):
    assert refusal(configurations.parse_set, text) == f"set={text}: {part} is not key=value, as in set=train.batch_size=32,seed=2"


def test_set_with_a_broken_value():
    assert refusal(configurations.parse_set, "seed=2,data.image_size=[28,28") == "set: the value of data.image_size is not YAML: '[28,28'"


def test_override_replaces_and_leaves_the_original():
    raw = {"seed": 1, "train": {"epochs": 3, "batch_size": 64}}
    changed = configurations.override(raw, {"seed": 2, "train.epochs": 5, "data.path": "/x"})
    assert changed == {"seed": 2, "train": {"epochs": 5, "batch_size": 64}, "data": {"path": "/x"}}
    assert raw == {"seed": 1, "train": {"epochs": 3, "batch_size": 64}}


def test_override_inside_a_single_value():
    assert refusal(configurations.override, {"seed": 1}, {"seed.x": 2}) == "seed.x: seed is a single value, not a section"


def test_differences_are_dotted_keys():
    old = {"seed": 1, "train": {"epochs": 3, "steps": None}, "model": {"name": "a", "stages": 2}, "data": {"image_size": [1, 1, 1]}}
    new = {"seed": 1, "train": {"epochs": 4, "steps": None}, "model": {"name": "a", "filters": 8}, "data": {"image_size": [1, 1, 3]}}
    assert configurations.differences(old, new) == ["train.epochs", "model.stages", "model.filters", "data.image_size"]
    assert configurations.differences(old, old) == []


@pytest.mark.parametrize("name", sorted(path.stem for path in configurations.CONFIGS.glob("*.yml")))
def test_every_configuration_builds_as_its_file_says(name):
    raw = configurations.load(configurations.find(name))
    plain = configurations.to_dict(configurations.build(raw))
    assert plain["model"]["name"] == name
    flat = {f"{section}.{key}": value for section, keys in raw.items() if isinstance(keys, dict) for key, value in keys.items()}
    assert configurations.override(plain, flat) == plain


def test_there_are_configurations():
    assert {path.stem for path in configurations.CONFIGS.glob("*.yml")} >= {"lecture_cnn", "task_cnn", "deep_cnn"}


def test_lecture_is_three_epochs_of_seventy_steps():
    train = configurations.build(configurations.load(configurations.find("lecture_cnn"))).train
    assert (train.epochs, train.steps_per_epoch, train.batch_size) == (3, 70, 64)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"model": {"name": "deep_cnn", "stages": 2}, "schedule": {"decay": [[82, 0.1], [123, 0.01]], "scaling": "linear"}},
        {"data": {"path": "/Bilder/Käse", "limit_train": 0.5, "image_size": [28, 28, 1]}, "train": {"time_limit": 60}},
    ],
)
def test_round_trips(raw, tmp_path):
    config = configurations.build(raw)
    assert configurations.build(configurations.to_dict(config)) == config
    path = tmp_path / "config.yml"
    path.write_text(configurations.dump(config), encoding="utf-8")
    assert configurations.build(configurations.load(path)) == config


def test_plain_form_holds_no_tuples():
    plain = configurations.to_dict(configurations.build({"schedule": {"decay": [[1, 0.5]]}}))
    assert plain["schedule"]["decay"] == [[1.0, 0.5]]
    assert plain["data"]["image_size"] == [32, 32, 3]


def test_find_by_name_and_by_path(tmp_path):
    path = tmp_path / "mine.yml"
    path.write_text("seed: 1\n")
    assert configurations.find("task_cnn") == configurations.CONFIGS / "task_cnn.yml"
    assert configurations.find(str(path)) == path


def test_find_names_the_nearest_and_lists_all():
    message = refusal(configurations.find, "task_cn")
    assert message.startswith("config=task_cn: no such configuration (did you mean task_cnn?); there are: ")
    assert "cnn, deep_cnn, fashion_cnn, lecture_cnn, resnet50" in message


@pytest.mark.parametrize("name", ["missing.yml", "/nowhere/missing", "../x"])
def test_find_a_missing_file(name, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert refusal(configurations.find, name) == f"config={name}: no such file"


@pytest.mark.parametrize(
    ("text", "reason"),
    [("a: [1", "not YAML"), ("- 1\n- 2\n", "this is list"), ("", "this is NoneType"), ("just words", "this is str")],
)
def test_load_refuses_what_is_no_mapping(text, reason, tmp_path):
    path = tmp_path / "bad.yml"
    path.write_text(text)
    message = refusal(configurations.load, path)
    assert message.startswith(f"{path}: ")
    assert reason in message


def test_load_refuses_what_is_not_utf8(tmp_path):
    path = tmp_path / "latin1.yml"
    path.write_bytes("data: {path: /Käse}\n".encode("latin-1"))
    assert str(path) in refusal(configurations.load, path)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("bset", "checkpoint.snapshots: bset is unknown (did you mean best?); it must be all, best, last, or a number N for every Nth"),
        (0, "checkpoint.snapshots: 0 is not allowed; it must be all, best, last, or at least 1"),
        (2.5, "checkpoint.snapshots: 2.5 is not a text or an integer"),
        (True, "checkpoint.snapshots: True is not a text or an integer"),
    ],
)
def test_snapshots_that_are_none(policy, message):
    assert refusal(configurations.build, {"checkpoint": {"snapshots": policy}}) == message


def test_older_key_is_read_under_its_name(tmp_path):
    path = tmp_path / "old.yml"
    path.write_text("telemetry: {split_every: 7}")
    assert configurations.build(configurations.load(path)).telemetry.profile_every == 7
    assert configurations.parse_set("telemetry.split_every=8") == {"telemetry.profile_every": 8}
    path.write_text("telemetry: {split_every: 7, profile_every: 9}")
    with pytest.raises(ConfigError, match=r"^telemetry\.split_every: unknown key"):
        configurations.build(configurations.load(path))


@pytest.mark.parametrize("path", sorted(configurations.CONFIGS.glob("*.yml")), ids=lambda path: path.stem)
def test_a_host_builds_what_was_written_for_it(path, tmp_path):
    config = configurations.build(configurations.load(path))
    (tmp_path / "config.yml").write_text(configurations.dump(config))
    assert loading.build(loading.load(tmp_path / "config.yml")) == config


def test_an_older_runs_configuration_is_rewritten_for_hosts(tmp_path):
    path = tmp_path / "config.yml"
    path.write_text("telemetry: {split_every: 7}\nschedule: {decay: [[1, 0.5]]}\noptimizer: {learning_rate: 1e-3}\n")
    config = configurations.build(configurations.load(path))
    path.write_text(configurations.rewritten(path))
    assert loading.build(loading.load(path)) == config
    assert (config.telemetry.profile_every, config.schedule.decay) == (7, ((1.0, 0.5),))
