"""How configurations are found, overridden from the command line, checked, written and compared."""

import copy
import dataclasses
import math
import operator
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from control.common import worker_environment
from control.common.project import ROOT
from trainer.common.errors import ConfigError
from trainer.common.suggest import nearest
from trainer.config.schedule import Counts
from trainer.config.schema import BALANCED, PARAMETER_SERVER, Config

RENAMED = {"telemetry.split_every": "telemetry.profile_every"}
"""Keys of older versions that configurations and `set` may still use."""
LONGEST_TEXT = 200
CONFIGS = ROOT / "trainer" / "configs"
OPTIMIZERS = {
    "adadelta": 2,
    "adafactor": 1,
    "adagrad": 1,
    "adam": 2,
    "adamax": 2,
    "adamw": 2,
    "ftrl": 2,
    "lamb": 2,
    "lion": 1,
    "muon": 2,
    "nadam": 2,
    "rmsprop": 1,
    "sgd": 1,
}
"""Each update rule, and how many arrays of the weights' size it keeps at most."""


def find(name: str) -> Path:
    """Path of a configuration given by name (in `trainer/configs`) or by path; ConfigError if there is none."""
    if name.endswith((".yml", ".yaml")) or "/" in name:
        path = Path(name).expanduser()
        if not path.is_file():
            raise ConfigError(f"config={name}: no such file")
        return path
    path = CONFIGS / f"{name}.yml"
    if not path.is_file():
        raise ConfigError(f"config={name}: no such configuration{nearest(name, names())}; there are: {', '.join(names())}")
    return path


def names() -> list[str]:
    """Configurations that can be given by name."""
    return sorted(path.stem for path in CONFIGS.glob("*.yml"))


def load(path: Path) -> dict[str, Any]:
    """Read a configuration file as plain nested dicts; ConfigError if it is not UTF-8, not YAML or not a mapping."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 ({error}); save it as UTF-8") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: a configuration is a mapping of sections, this is {type(raw).__name__}")
    return _with_new_names(raw)


def _with_new_names(raw: dict[str, Any]) -> dict[str, Any]:
    """A copy with renamed keys updated; a key present under both names is left for the check to refuse."""
    result = copy.deepcopy(raw)
    for old, new in RENAMED.items():
        section, key = old.split(".")
        values, name = result.get(section), new.partition(".")[2]
        if isinstance(values, dict) and key in values and name not in values:
            values[name] = values.pop(key)
    return result


def parse_set(text: str) -> dict[str, Any]:
    """Split `a.b=1,c=[1,2]` into `{"a.b": 1, "c": [1, 2]}`, at commas outside brackets, braces and quotes; values are YAML.

    ConfigError if a part is not `key=value`, or its value is not YAML.
    """
    overrides = {}
    for part in _split_commas(text):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"set={text}: {part!r} is not key=value, as in set=train.batch_size=32,seed=2")
        name = RENAMED.get(key.strip(), key.strip())
        overrides[name] = _value(name, value)
    return overrides


def _value(name: str, text: str) -> Any:
    """A value given as YAML; a name or a title that is something else in YAML, such as `Exercise 3: images`, is the text itself."""
    is_title = name.startswith("report.")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        if is_title:
            return text.strip()
        raise ConfigError(f"set: the value of {name} is not YAML: {text!r}") from None
    return value if not is_title or value is None or isinstance(value, str) else text.strip()


def _split_commas(text: str) -> list[str]:
    parts: list[str] = []
    for piece in text.split(","):
        if parts and _is_open(parts[-1].partition("=")[2].strip()):
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
    return [part for part in parts if part.strip()]


def _is_open(value: str) -> bool:
    """Return whether a value ends inside brackets, braces or quotes."""
    if not value.startswith(("[", "{", "'", '"')):
        return sum(map(value.count, "[{")) > sum(map(value.count, "]}"))
    try:
        yaml.safe_load(value)
    except yaml.YAMLError:
        return True
    return False


def override(raw: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """A copy of `raw` with dotted keys replaced."""
    result = copy.deepcopy(raw)
    for dotted, value in overrides.items():
        *sections, key = dotted.split(".")
        values: Any = result
        for section in sections:
            values = values.setdefault(section, {})
            if not isinstance(values, dict):
                raise ConfigError(f"{dotted}: {section} is a single value, not a section")
        values[key] = value
    return result


def build(raw: dict[str, Any]) -> Config:
    """A checked `Config` from plain nested dicts; ConfigError for an unknown key, a wrong type or inconsistent values."""
    config: Config = _section(Config, raw, "")
    _check(config)
    return config


def _section(kind: type, raw: Any, prefix: str) -> Any:
    if not isinstance(raw, dict):
        raise ConfigError(f"{prefix.rstrip('.') or 'configuration'}: expected a mapping, got {raw!r}")
    hints = typing.get_type_hints(kind)
    for key in raw:
        if key not in hints:
            known = ", ".join(prefix + name for name in hints)
            elsewhere = " or ".join(named(str(key)))
            meant = f" (did you mean {elsewhere}?)" if elsewhere else nearest(key, hints, prefix)
            raise ConfigError(f"{prefix}{key}: unknown key{meant}; known: {known}")
    values = {key: value_of(hints[key], value, prefix + key) for key, value in raw.items()}
    return kind(**values)


def named(name: str) -> list[str]:
    """Dotted keys that `name` is, or is the last part of, as `optimizer.learning_rate` for `learning_rate`."""
    return [key for key, _ in all_keys() if name in (key, key.rpartition(".")[2])]


def all_keys(section: type = Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every configuration key by dotted name, with its type; a section of free keys (`model`) is one key."""
    for name, hint in typing.get_type_hints(section).items():
        if dataclasses.is_dataclass(hint):
            yield from all_keys(typing.cast(type, hint), f"{prefix}{name}.")
        else:
            yield prefix + name, hint


def value_of(hint: Any, value: Any, name: str) -> Any:
    """A value converted to its declared type; ConfigError if it has another."""
    if dataclasses.is_dataclass(hint):
        return _section(typing.cast(type, hint), value, name + ".")
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        converted, fits = _convert(option, value)
        if fits:
            return converted
    raise ConfigError(f"{name}: {value!r} is not {_describe(options)}")


def _convert(kind: Any, value: Any) -> tuple[Any, bool]:
    origin = typing.get_origin(kind) or kind
    if origin is types.NoneType:
        return None, value is None
    if origin is tuple:
        return _convert_tuple(kind, value)
    if typing.get_args(kind) in ((str, str), (str, float)):
        by_name = worker_environment.as_texts(value) if str in typing.get_args(kind)[1:] else _numbers(value)
        return by_name, by_name is not None
    if origin is float and isinstance(value, int | str) and not isinstance(value, bool):
        return _number(value)
    if origin is int:
        return value, isinstance(value, int) and not isinstance(value, bool)
    return value, isinstance(value, origin)


def _numbers(value: Any) -> dict[str, float] | None:
    """Numbers by name, which may be a whole number; None if it is anything else."""
    if not isinstance(value, dict) or not all(isinstance(key, int | str) and not isinstance(key, bool) for key in value):
        return None
    pairs = {str(key): _convert(float, number) for key, number in value.items()}
    return {key: number for key, (number, _) in pairs.items()} if all(fits for _, fits in pairs.values()) else None


def _number(value: int | str) -> tuple[Any, bool]:
    try:
        return float(value), True
    except ValueError:
        return value, False


def _convert_tuple(kind: Any, value: Any) -> tuple[Any, bool]:
    if not isinstance(value, list | tuple):
        return value, False
    item = typing.get_args(kind)[0]
    pairs = [_convert(item, element) for element in value]
    return tuple(converted for converted, _ in pairs), all(fits for _, fits in pairs)


def _describe(options: tuple[Any, ...]) -> str:
    names = {int: "an integer", float: "a number", str: "a text", bool: "true or false", dict: "a mapping", tuple: "a list"}
    others = {
        types.NoneType: "null",
        dict[str, str]: "a mapping of names to texts or numbers",
        dict[str, float]: "a mapping of names to numbers",
    }
    return " or ".join(others.get(option) or names[typing.get_origin(option) or option] for option in options)


def _check(config: Config) -> None:
    """Refuse values that are out of range or inconsistent (ConfigError)."""
    size, sizes, scale = config.data.image_size, config.train.batch_sizes, config.augment.scale
    for rule, (holds, keys) in RULES.items():
        for key in keys.split():
            value = operator.attrgetter(key)(config)
            _rule(holds(value), key, value, rule)
    for key, choices in CHOICES.items():
        _one_of(key, operator.attrgetter(key)(config), choices)
    kinds = {"half": ["bfloat16", "float16"], "packed": ["bfloat16", "float16", "float32"]}
    _one_of("reduction.dtype", config.reduction.dtype, kinds.get(config.reduction.name, ["bfloat16", "float32"]))
    decayed = config.optimizer.name != "adamw" or config.optimizer.weight_decay > 0
    _rule(decayed, "optimizer.weight_decay", config.optimizer.weight_decay, "above 0 for adamw (0.004 is usual); without decay it is adam")
    _rule(isinstance(config.model.get("name"), str), "model.name", config.model.get("name"), "the name of a model")
    _rule(len(size) == 3 and min(size) > 0 and size[2] in (1, 3), "data.image_size", list(size), "[height, width, 1 or 3]")
    features = config.data.features
    fits = features is None or (len(features) > 0 and len(set(features)) == len(features))
    _rule(fits, "data.features", features, "null, or names of columns, each once")
    fits = sizes in (None, "auto") if isinstance(sizes, str | None) else len(sizes) > 0 and min(sizes) >= 1
    _rule(fits, "train.batch_sizes", sizes, "null, auto, or a list of numbers from 1")
    worker_environment.check_environment(config.train.environment, "train.environment")
    _rule(all(len(pair) == 2 for pair in config.schedule.decay), "schedule.decay", config.schedule.decay, "a list of [epoch, factor]")
    fits = not scale or (len(scale) == 2 and 0 < scale[0] <= scale[1] < math.inf)
    _rule(fits, "augment.scale", list(scale), "empty, or [least, most] above 0")
    fits = not config.augment.saturation or size[2] == 3
    _rule(fits, "augment.saturation", config.augment.saturation, "0 for images of one channel (data.image_size)")
    fits = config.strategy.staleness is None or config.strategy.asynchronous
    _rule(fits, "strategy.staleness", config.strategy.staleness, f"null without strategy.name={PARAMETER_SERVER}")
    fits = not config.recovery.elastic or config.recovery.elastic_wait < config.recovery.rejoin_wait
    rule = f"below recovery.rejoin_wait ({config.recovery.rejoin_wait:g}), after which all hosts must be back"
    _rule(fits, "recovery.elastic_wait", config.recovery.elastic_wait, rule)
    _check_class_weight(config.train.class_weight)
    _check_snapshots(config.checkpoint.snapshots)


RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "at least 0": (
        lambda value: value >= 0,
        "seed data.cache_limit_mb augment.crop reduction.warmup_steps telemetry.profile_every telemetry.log_every "
        "optimizer.learning_rate optimizer.weight_decay schedule.warmup_epochs recovery.max_restarts",
    ),
    "at least 1": (
        lambda value: value >= 1,
        "train.epochs train.batch_size reduction.min_elements checkpoint.keep telemetry.sample_every data.bucket train.validate_every "
        "recovery.max_restarts_per_hour recovery.min_workers",
    ),
    "null or at least 0": (lambda value: value is None or value >= 0, "strategy.staleness"),
    "null or at least 1": (
        lambda value: value is None or value >= 1,
        "data.loaders checkpoint.every_steps train.patience train.last_layers",
    ),
    "null or above 0": (
        lambda value: value is None or value > 0,
        "train.steps train.steps_per_epoch train.global_batch train.time_limit optimizer.clip_norm checkpoint.every_seconds",
    ),
    "a fraction up to 1.0 or a count from 1": (
        lambda value: value is None or (value >= 1 if isinstance(value, int) else 0 < value <= 1),
        "data.limit_train data.limit_validation",
    ),
    f"null or at most {LONGEST_TEXT} printable characters on one line": (
        lambda value: value is None or (len(value) <= LONGEST_TEXT and value.isprintable()),
        "report.author report.title",
    ),
    "below 2**63": (lambda value: value < 2**63, "seed"),
    "finite": (math.isfinite, "optimizer.learning_rate optimizer.weight_decay schedule.warmup_epochs"),
    "from 0 to 100": (lambda value: 0 <= value <= 100, "augment.mixup"),
    "from 0 to 1": (lambda value: 0 <= value <= 1, "augment.brightness augment.contrast augment.saturation"),
    "above 0 and finite": (
        lambda value: 0 < value < math.inf,
        "optimizer.epsilon recovery.rejoin_wait recovery.hang recovery.elastic_wait",
    ),
    "between 0 and 1": (lambda value: 0 < value < 1, "data.validation_split data.test_split"),
    "from 0 to below 1": (
        lambda value: 0 <= value < 1,
        "optimizer.momentum optimizer.beta_1 optimizer.beta_2 schedule.final augment.shift train.label_smoothing",
    ),
    "from 0 to 32": (lambda value: 0 <= value <= 32, "reduction.recycle"),
    "from 0 to 180": (lambda value: 0 <= value <= 180, "augment.rotate"),
    "from 1 to 16": (lambda value: 1 <= value <= 16, "reduction.rank reduction.max_rank"),
    "from 1 to 1000": (lambda value: 1 <= value <= 1000, "train.steps_per_call"),
}
"""Rules for single values, each with the keys that it applies to."""
CHOICES = {
    "train.precision": ["float32", "mixed_bfloat16"],
    "optimizer.name": list(OPTIMIZERS),
    "schedule.scaling": ["none", "linear", "sqrt"],
    "schedule.shape": ["constant", "linear", "cosine"],
    "strategy.name": ["synchronous", PARAMETER_SERVER],
    "reduction.name": ["auto", "packed", "half", "powersgd"],
    "reduction.transport": ["auto", "direct", "tensorflow"],
    "checkpoint.copy": ["peer", "all", "none"],
}


def _check_class_weight(given: str | dict[str, float] | None) -> None:
    rule = "balanced, or numbers from 0 by class, not all of them 0, as in {cat: 2.5, dog: 1}"
    if isinstance(given, str):
        _one_of("train.class_weight", given, [BALANCED], rule)
    elif given is not None:
        fits = bool(given) and all(0 <= weight < math.inf for weight in given.values()) and any(given.values())
        _rule(fits, "train.class_weight", given, rule)


def _check_snapshots(snapshots: str | int) -> None:
    if isinstance(snapshots, int):
        _rule(snapshots >= 1, "checkpoint.snapshots", snapshots, "all, best, last, or at least 1")
    else:
        _one_of("checkpoint.snapshots", snapshots, ["all", "best", "last"], "all, best, last, or a number N for every Nth")


def check_sizes(sizes: Counts, workers: int) -> None:
    """Refuse sizes that would leave one of the workers that share a step without images."""
    if sizes.global_batch < workers:
        raise ConfigError(
            f"train.global_batch={sizes.global_batch}: each of {workers} workers needs an example per step. "
            f"Fix: at least {workers}, or fewer workers (-e workers=N)"
        )
    if sizes.train_images < workers:
        raise ConfigError(
            f"the dataset has {sizes.train_images} training examples, and each of {workers} workers needs one. Fix: fewer workers "
            "(-e workers=N), or more examples"
        )


def _rule(holds: bool, key: str, value: Any, rule: str) -> None:
    if not holds:
        raise ConfigError(f"{key}: {value} is not allowed; it must be {rule}")


def _one_of(key: str, value: str, choices: list[str], rule: str = "") -> None:
    """Refuse a word that is none of the choices; `rule` says what else is allowed beside words."""
    if value not in choices:
        rule = rule or f"one of: {', '.join(choices)}"
        raise ConfigError(f"{key}: {value} is unknown{nearest(value, choices)}; it must be {rule}")


def to_dict(config: Config) -> dict[str, Any]:
    """Plain nested dicts and lists, as written to `config.yml`."""
    return typing.cast(dict[str, Any], _plain(dataclasses.asdict(config)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def dump(config: Config) -> str:
    """The configuration as YAML."""
    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)


def rewritten(path: Path) -> str:
    """A run's `config.yml` as this version writes it, for a host: one of an older version may have other keys."""
    return dump(build(load(path)))


def value_at(plain: dict[str, Any], dotted: str) -> Any:
    """The value of a dotted key in a plain configuration; None if it is missing."""
    value: Any = plain
    for key in dotted.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys whose values differ between two plain configurations."""
    keys = []
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            keys += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            keys.append(prefix + key)
    return keys
