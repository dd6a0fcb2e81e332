"""The configuration of a run: frozen dataclasses, read from YAML, checked in one place.

The shape follows torchtitan's `JobConfig`: one dataclass a section, a docstring under each
field, unknown keys rejected with the nearest known one.
"""

import dataclasses
import difflib
import math
import re
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainer.errors import ConfigError

CONFIGS = Path(__file__).parent / "configs"
SCIENTIFIC = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


@dataclass(frozen=True)
class Data:
    """Where images come from and how they are cut to size."""

    source: str = "fashion_mnist"
    """A registered source: `folder`, `idx`, `tfrecords`, `own` or `fashion_mnist`."""
    path: str | None = None
    """Folder or file of the source; `fashion_mnist` needs none."""
    image_size: tuple[int, ...] = (32, 32, 3)
    """Height, width (pixels) and channels (1 or 3) that a model sees."""
    validation_split: float = 0.2
    """Fraction of `train/` held out for validation, stratified by class."""
    limit_train: int | float | None = None
    """Use only this part of the training images: a float up to 1.0 is a fraction, an integer a count."""
    cache_limit_mb: int = 2048
    """Largest packed cache on a node, MB; a larger dataset is decoded while it trains."""
    loaders: int | None = None
    """Threads that decode images while it trains; default: the host's cores."""
    allow_bad_images: bool = False
    """Leave unreadable images out (and count them) instead of refusing to start."""


@dataclass(frozen=True)
class Train:
    """How long and in what portions to train."""

    epochs: int = 3
    """Passes over the training images, in all (a resumed run counts those it has done)."""
    steps: int | None = None
    """Stop after this many steps in all, whatever `epochs` says."""
    steps_per_epoch: int | None = None
    """Steps that make an epoch; default: as many as see every training image once."""
    batch_size: int = 64
    """Images a step on each worker."""
    batch_sizes: str | tuple[int, ...] | None = None
    """Images a step on every worker, by rank, where they differ; `auto`: so that all take as long, as measured before training."""
    global_batch: int | None = None
    """Images a step over all workers; default: batch_size times workers, or the sum of batch_sizes."""
    steps_per_call: int = 8
    """Steps that TensorFlow runs between two returns to Python."""
    precision: str = "float32"
    """Arithmetic of the model: `float32`, or `mixed_bfloat16` with weights, sums and the update in float32."""
    time_limit: float | None = None
    """Seconds after which the run saves its state and ends as CANCELLED."""


@dataclass(frozen=True)
class Optimizer:
    """The update rule."""

    name: str = "sgd"
    """`sgd`: stochastic gradient descent with momentum; `adam`."""
    learning_rate: float = 0.01
    """Step size before scaling, warm-up and decay."""
    momentum: float = 0.9
    """`sgd`: share of the last update that the next one keeps."""
    beta_1: float = 0.9
    """`adam`: share of the gradients' running mean that a step keeps."""
    beta_2: float = 0.999
    """`adam`: the same of their squares'."""
    epsilon: float = 1e-7
    """`adam`: what is added to the root of the squares."""
    weight_decay: float = 0.0
    """Decoupled decay of the weights a step, in units of the learning rate."""
    clip_norm: float | None = None
    """Longest mean gradient, as a norm over all variables; a longer one is shortened to it."""


@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes (Goyal et al. 2017, arXiv:1706.02677)."""

    scaling: str = "none"
    """With the number of workers: `none`, `linear` or `sqrt`."""
    warmup_epochs: float = 0.0
    """Epochs over which the rate climbs from its base to its scaled value."""
    decay: tuple[tuple[float, float], ...] = ()
    """Pairs `[epoch, factor]`: from that epoch on the rate is the scaled one times the factor."""


@dataclass(frozen=True)
class Augment:
    """How training images are varied, drawn anew for every image and step from the seed; validation and test see them as they are."""

    crop: int = 0
    """Pad by so many pixels of zeros on every side, and cut the image's size out of that at random (He et al. 2015, arXiv:1512.03385)."""
    flip: bool = False
    """Mirror half of the images from left to right."""
    shift: float = 0.0
    """Move by up to this part of width and height; the border is repeated, unless images are cropped, turned or scaled, too."""
    rotate: float = 0.0
    """Turn by up to so many degrees; what was outside is black."""
    scale: tuple[float, ...] = ()
    """Enlarge by a factor from this range, `[least, most]`; what was outside is black."""


@dataclass(frozen=True)
class Reduction:
    """How gradients are summed over the workers."""

    name: str = "auto"
    """`packed`: float32; `half`: 16 bits on the wire; `powersgd`: low-rank factors with error feedback; `auto`: `powersgd`
    where sending all gradients would take more than a tenth of a step's own work, else `packed`."""
    rank: int = 2
    """`powersgd`: left factors that are sent a step for a tensor of two million elements or more, 1 to 16."""
    max_rank: int = 16
    """`powersgd`: the rank of a smaller tensor is as much larger as it is smaller, up to this; at or below `rank` all have the same."""
    recycle: int = 4
    """`powersgd`: left factors of steps before that are used again, 0 to 32; they cost work, and next to no bytes."""
    min_elements: int = 100_000
    """`powersgd`: tensors with fewer elements are sent as they are."""
    warmup_steps: int = 0
    """`powersgd`: send this many first steps uncompressed."""
    dtype: str = "bfloat16"
    """`half`: `bfloat16` or `float16`. `powersgd`: `bfloat16` or `float32`, of its left factors."""
    transport: str = "auto"
    """`direct`: connections between every two workers; `tensorflow`: its collectives; `auto`: direct, and TensorFlow's with GPUs."""


@dataclass(frozen=True)
class Checkpoint:
    """When training state is written."""

    every_steps: int | None = None
    """Also write the state every so many steps; it is always written at the end of an epoch."""
    keep: int = 2
    """How many of the newest states to keep."""


@dataclass(frozen=True)
class Telemetry:
    """What is recorded while training."""

    sample_every: int = 1
    """Record the progress of every so many calls in metrics.jsonl."""
    split_every: int = 50
    """Take one of so many steps apart and record how long its parts take; 0: none."""
    log_every: int = 0
    """Write images/s to the chief's worker.log every so many steps, loss and learning rate every ten times as many; 0: never."""


@dataclass(frozen=True)
class Config:
    """A run's configuration."""

    seed: int = 1
    """Seed of the weights and of the order of images."""
    model: dict[str, Any] = field(default_factory=lambda: {"name": "lecture_cnn"})
    """`name` of a registered model, and that model's own options."""
    data: Data = Data()
    augment: Augment = Augment()
    train: Train = Train()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    reduction: Reduction = Reduction()
    checkpoint: Checkpoint = Checkpoint()
    telemetry: Telemetry = Telemetry()


def nearest(name: str, known: typing.Iterable[str], prefix: str = "") -> str:
    """A hint ` (did you mean X?)` when a known name is close to `name`, else an empty string.

    `prefix` is shown before X, and not compared: what all names share says nothing of likeness.
    """
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""


def find(name: str) -> Path:
    """Path of a configuration given by name (in `trainer/configs`) or by path.

    Raises:
        ConfigError: there is neither.
    """
    if name.endswith((".yml", ".yaml")) or "/" in name:
        path = Path(name).expanduser()
        if not path.is_file():
            raise ConfigError(f"config={name}: no such file")
        return path
    path = CONFIGS / f"{name}.yml"
    if not path.is_file():
        names = sorted(p.stem for p in CONFIGS.glob("*.yml"))
        raise ConfigError(f"config={name}: no such configuration{nearest(name, names)}; there are: {', '.join(names)}")
    return path


def load(path: Path) -> dict[str, Any]:
    """Read a configuration file as plain nested dicts.

    Raises:
        ConfigError: the file is not UTF-8, not YAML or not a mapping.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 ({error}); save it as UTF-8") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: a configuration is a mapping of sections, this is {type(raw).__name__}")
    return raw


def parse_set(text: str) -> dict[str, Any]:
    """Split `a.b=1,c=[1,2]` into `{"a.b": 1, "c": [1, 2]}`; values are YAML.

    Commas inside brackets, braces or quotes do not separate.

    Raises:
        ConfigError: a part is not `key=value`, or its value is not YAML.
    """
    overrides = {}
    for part in _split_commas(text):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"set={text}: {part!r} is not key=value, as in set=train.batch_size=32,seed=2")
        try:
            overrides[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"set: the value of {key.strip()} is not YAML: {value!r}") from None
    return overrides


def _split_commas(text: str) -> list[str]:
    parts, depth, quote, start, closed = [], 0, "", 0, -1
    for position, char in enumerate(text):
        if quote:
            quote, closed = ("", position) if char == quote else (quote, closed)
        elif char in "\"'":
            # Right after a closing one it is YAML's doubled quote, which stands for one inside the text.
            quote = char if closed == position - 1 >= 0 or _value_starts(text[start:position], depth) else ""
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return [part for part in parts if part.strip()]


def _value_starts(before: str, depth: int) -> bool:
    """Whether a value starts after `before`, so that a quote opens there and is no apostrophe."""
    if depth > 0:
        return before.rstrip().endswith(("[", "{", ",", ":"))
    _, equals, value = before.partition("=")
    return bool(equals) and not value.strip()


def override(raw: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """A copy of `raw` with dotted keys replaced."""
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in raw.items()}
    for dotted, value in overrides.items():
        section, dot, key = dotted.partition(".")
        if not dot:
            result[section] = value
        elif isinstance(result.setdefault(section, {}), dict):
            result[section][key] = value
        else:
            raise ConfigError(f"{dotted}: {section} is a single value, not a section")
    return result


def build(raw: dict[str, Any]) -> Config:
    """Make a checked `Config` from plain nested dicts.

    Raises:
        ConfigError: an unknown key (with the nearest known one), a value of the wrong type, or
            values that do not go together.
    """
    config = _section(Config, raw, "")
    check(config)
    return config


def _section(kind: type, raw: Any, prefix: str) -> Any:
    if not isinstance(raw, dict):
        raise ConfigError(f"{prefix.rstrip('.') or 'configuration'}: expected a mapping, got {raw!r}")
    hints = typing.get_type_hints(kind)
    for key in raw:
        if key not in hints:
            known = ", ".join(prefix + name for name in hints)
            raise ConfigError(f"{prefix}{key}: unknown key{nearest(key, hints, prefix)}; known: {known}")
    values = {key: value_of(hints[key], value, prefix + key) for key, value in raw.items()}
    return kind(**values)


def value_of(hint: Any, value: Any, name: str) -> Any:
    """A value as its type says.

    Raises:
        ConfigError: it is of another.
    """
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
    if origin is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value), True
    if origin is float and isinstance(value, str):
        return _number(value)
    if origin is int:
        return value, isinstance(value, int) and not isinstance(value, bool)
    return value, isinstance(value, origin)


def _number(value: str) -> tuple[Any, bool]:
    try:
        return float(value), True
    except ValueError:
        return value, False


def scientific(value: Any) -> Any:
    """YAML 1.1 reads `1e-3` as a text; the number is what was meant."""
    return float(value) if isinstance(value, str) and SCIENTIFIC.fullmatch(value) else value


def _convert_tuple(kind: Any, value: Any) -> tuple[Any, bool]:
    if not isinstance(value, list | tuple):
        return value, False
    item = typing.get_args(kind)[0]
    pairs = [_convert(item, element) for element in value]
    return tuple(converted for converted, _ in pairs), all(fits for _, fits in pairs)


def _describe(options: tuple[Any, ...]) -> str:
    names = {int: "an integer", float: "a number", str: "a text", bool: "true or false", dict: "a mapping"}
    words = []
    for option in options:
        origin = typing.get_origin(option) or option
        words.append("null" if origin is types.NoneType else "a list" if origin is tuple else names[origin])
    return " or ".join(words)


def check(config: Config) -> None:
    """Refuse values out of range and values that do not go together.

    Raises:
        ConfigError: names the key, its value and the rule.
    """
    data, train, optimizer, schedule = config.data, config.train, config.optimizer, config.schedule
    size = data.image_size
    _rule(config.seed >= 0, "seed", config.seed, "at least 0")
    _rule(config.seed < 2**63, "seed", config.seed, "below 2**63")
    _rule(isinstance(config.model.get("name"), str), "model.name", config.model.get("name"), "the name of a model")
    _rule(len(size) == 3 and min(size) > 0 and size[2] in (1, 3), "data.image_size", list(size), "[height, width, 1 or 3]")
    _rule(0 < data.validation_split < 1, "data.validation_split", data.validation_split, "between 0 and 1")
    _rule(_limit_fits(data.limit_train), "data.limit_train", data.limit_train, "a fraction up to 1.0 or a count from 1")
    _rule(data.cache_limit_mb >= 0, "data.cache_limit_mb", data.cache_limit_mb, "at least 0")
    _rule(data.loaders is None or data.loaders >= 1, "data.loaders", data.loaders, "null or at least 1")
    _rule(train.epochs >= 1, "train.epochs", train.epochs, "at least 1")
    for key in ("steps", "steps_per_epoch", "global_batch", "time_limit"):
        value = getattr(train, key)
        _rule(value is None or value > 0, f"train.{key}", value, "null or above 0")
    _rule(train.batch_size >= 1, "train.batch_size", train.batch_size, "at least 1")
    _rule(_sizes_fit(train.batch_sizes), "train.batch_sizes", train.batch_sizes, "null, auto, or a list of numbers from 1")
    _rule(1 <= train.steps_per_call <= 1000, "train.steps_per_call", train.steps_per_call, "from 1 to 1000")
    _one_of("train.precision", train.precision, ["float32", "mixed_bfloat16"])
    _one_of("optimizer.name", optimizer.name, ["sgd", "adam"])
    _finite("optimizer.learning_rate", optimizer.learning_rate)
    for key in ("momentum", "beta_1", "beta_2"):
        _rule(0 <= getattr(optimizer, key) < 1, f"optimizer.{key}", getattr(optimizer, key), "from 0 to below 1")
    _rule(0 < optimizer.epsilon < math.inf, "optimizer.epsilon", optimizer.epsilon, "above 0 and finite")
    _finite("optimizer.weight_decay", optimizer.weight_decay)
    _one_of("schedule.scaling", schedule.scaling, ["none", "linear", "sqrt"])
    _finite("schedule.warmup_epochs", schedule.warmup_epochs)
    _rule(all(len(pair) == 2 for pair in schedule.decay), "schedule.decay", schedule.decay, "a list of [epoch, factor]")
    _check_augment(config.augment)
    _check_reduction(config.reduction)
    _rule(optimizer.clip_norm is None or optimizer.clip_norm > 0, "optimizer.clip_norm", optimizer.clip_norm, "null or above 0")
    _rule(config.checkpoint.keep >= 1, "checkpoint.keep", config.checkpoint.keep, "at least 1")
    every = config.checkpoint.every_steps
    _rule(every is None or every >= 1, "checkpoint.every_steps", every, "null or at least 1")
    _rule(config.telemetry.sample_every >= 1, "telemetry.sample_every", config.telemetry.sample_every, "at least 1")
    for key in ("split_every", "log_every"):
        value = getattr(config.telemetry, key)
        _rule(value >= 0, f"telemetry.{key}", value, "at least 0")


def _check_augment(augment: Augment) -> None:
    _rule(augment.crop >= 0, "augment.crop", augment.crop, "at least 0")
    _rule(0 <= augment.shift < 1, "augment.shift", augment.shift, "from 0 to below 1")
    _rule(0 <= augment.rotate <= 180, "augment.rotate", augment.rotate, "from 0 to 180")
    scale = augment.scale
    _rule(
        not scale or (len(scale) == 2 and 0 < scale[0] <= scale[1] < math.inf),
        "augment.scale",
        list(scale),
        "empty, or [least, most] above 0",
    )


def _check_reduction(reduction: Reduction) -> None:
    _one_of("reduction.name", reduction.name, ["auto", "packed", "half", "powersgd"])
    _rule(1 <= reduction.rank <= 16, "reduction.rank", reduction.rank, "from 1 to 16")
    _rule(1 <= reduction.max_rank <= 16, "reduction.max_rank", reduction.max_rank, "from 1 to 16")
    _rule(0 <= reduction.recycle <= 32, "reduction.recycle", reduction.recycle, "from 0 to 32")
    _rule(reduction.min_elements >= 1, "reduction.min_elements", reduction.min_elements, "at least 1")
    _rule(reduction.warmup_steps >= 0, "reduction.warmup_steps", reduction.warmup_steps, "at least 0")
    kinds = {"half": ["bfloat16", "float16"], "packed": ["bfloat16", "float16", "float32"]}
    _one_of("reduction.dtype", reduction.dtype, kinds.get(reduction.name, ["bfloat16", "float32"]))
    _one_of("reduction.transport", reduction.transport, ["auto", "direct", "tensorflow"])


def _limit_fits(limit: int | float | None) -> bool:
    return limit is None or (limit >= 1 if isinstance(limit, int) else 0 < limit <= 1)


def _sizes_fit(sizes: str | tuple[int, ...] | None) -> bool:
    return sizes in (None, "auto") if isinstance(sizes, str | None) else len(sizes) > 0 and min(sizes) >= 1


def sizes_misfit(sizes: tuple[int, ...], workers: int) -> str | None:
    """What is wrong with `train.batch_sizes` for so many workers, and the mend; None where nothing is."""
    if len(sizes) == workers:
        return None
    return f"train.batch_sizes: {len(sizes)} sizes ({', '.join(map(str, sizes))}) for {workers} workers; give one for each"


def _rule(holds: bool, key: str, value: Any, rule: str) -> None:
    if not holds:
        raise ConfigError(f"{key}: {value} is not allowed; it must be {rule}")


def _finite(key: str, value: float) -> None:
    _rule(value >= 0, key, value, "at least 0")
    _rule(math.isfinite(value), key, value, "finite")


def _one_of(key: str, value: str, known: list[str]) -> None:
    if value not in known:
        raise ConfigError(f"{key}: {value} is unknown{nearest(value, known)}; it must be one of: {', '.join(known)}")


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
