"""The configuration of a run: frozen dataclasses, read from YAML, checked in one place, in the manner of torchtitan's `JobConfig`."""

import copy
import dataclasses
import difflib
import math
import operator
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainer import environment
from trainer.errors import ConfigError

RENAMED = {"telemetry.split_every": "telemetry.profile_every"}
"""Keys of older versions that configurations and `set` may still use."""
BALANCED = "balanced"
"""`train.class_weight` that follows from how many examples each class has."""
PARAMETER_SERVER = "parameter_server"
"""`strategy.name` of an asynchronous run."""
CONFIGS = Path(__file__).parent / "configs"
SCIENTIFIC = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


@dataclass(frozen=True)
class Data:
    """Where images or columns come from, and how images are fitted to size."""

    source: str = "fashion_mnist"
    """A registered source: `folder`, `idx`, `tfrecords`, `columns`, `own` or `fashion_mnist`."""
    path: str | None = None
    """Folder or file of the source; `fashion_mnist` needs none."""
    target: str | None = None
    """Columns: name of the column that a model learns to predict."""
    features: tuple[str, ...] | None = None
    """Columns: names of the columns that a model gets; default: all except `target`."""
    image_size: tuple[int, ...] = (32, 32, 3)
    """Height, width (pixels) and channels (1 or 3) of a model's input."""
    validation_split: float = 0.2
    """Fraction of the training examples held out for validation, stratified by class."""
    limit_train: int | float | None = None
    """Use only part of the training examples: a float up to 1.0 is a fraction, an integer a count."""
    cache_limit_mb: int = 2048
    """Largest packed cache on a node, MB; a larger dataset is decoded during training."""
    loaders: int | None = None
    """Threads that decode images during training; default: the host's cores."""
    allow_bad_images: bool = False
    """Skip (and count) unreadable images instead of refusing to start."""
    augment: dict[str, str] | None = None
    """A function that changes each training example, with its file's text: `augment(x, y, seed)` in the file that `dataset=` names."""
    bucket: int = 1
    """Columns that vary in length: examples of this many consecutive batches are sorted by length, which saves padding; 1: unsorted."""


@dataclass(frozen=True)
class Train:
    """How long and with what batch sizes to train."""

    epochs: int = 3
    """Passes over the training examples in total (a resumed run counts the ones already done)."""
    steps: int | None = None
    """Stop after this many steps in total, regardless of `epochs`."""
    steps_per_epoch: int | None = None
    """Steps per epoch; default: enough to see every training example once."""
    batch_size: int = 64
    """Examples per step on each worker."""
    batch_sizes: str | tuple[int, ...] | None = None
    """Examples per step on each worker, by rank, where they differ; `auto`: so that all take equally long, measured before training."""
    global_batch: int | None = None
    """Examples per step over all workers; default: batch_size times workers, or the sum of batch_sizes."""
    steps_per_call: int = 8
    """Steps that TensorFlow runs between two returns to Python."""
    precision: str = "float32"
    """Arithmetic of the model: `float32`, or `mixed_bfloat16` with weights, sums and the update in float32."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of all workers, such as `{TF_ENABLE_ONEDNN_OPTS: 0}`; they override `worker_environment` in the inventory."""
    monitor: str | None = None
    """Column of history.csv that decides which epoch is best, such as `val_auc`; with `min:` or `max:` before it where its name does not
    tell; default: `val_accuracy`, or `val_loss` for a model without it."""
    callbacks: dict[str, str] | None = None
    """A function that returns Keras callbacks for a compiled model, with its file's text; `-e callbacks=FILE.py:FUNCTION` sets it."""
    weights: dict[str, str] | None = None
    """File of weights to start from, and its SHA-256; `-e weights=FILE` sets it."""
    skip_mismatch: bool = False
    """Whether layers that the file of `weights` does not fit keep their own initial weights; else they are refused."""
    weights_by_name: bool = False
    """Whether a layer takes the weights of the layer of its name, whatever other layers the models have; those without keep their own."""
    optimizer_state: bool = False
    """Whether a compiled model's optimizer goes on with the rate, steps and averages in the file of `weights`; else it begins anew."""
    last_layers: int | None = None
    """Train only the last N layers that have weights, and keep the others' as they are, as with a model from `weights`; null: all."""
    class_weight: str | dict[str, float] | None = None
    """What examples of a class weigh in the training loss, by the class's name or number, as in `{cat: 2.5}` (others: 1); `balanced`:
    training examples / (classes * those of the class)."""
    class_counts: tuple[int, ...] | None = None
    """`class_weight: balanced`: training examples of each class; the plan counts them."""
    label_smoothing: float = 0.0
    """Classifiers of images: fraction of each training label that is spread over all classes (Szegedy et al. 2016, arXiv:1512.00567)."""
    validate_every: int = 1
    """Validate at the end of every Nth epoch, and of the last."""
    patience: int | None = None
    """End the training once this many validations in a row were no better, by `monitor`, than one before (Prechelt 1998); null: never."""
    time_limit: float | None = None
    """Seconds after the launch at which the run saves its state and ends as CANCELLED; workers that start again by themselves count on."""


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


@dataclass(frozen=True)
class Optimizer:
    """The update rule."""

    name: str = "sgd"
    """`sgd` (with momentum), `adam`, `adamw`, or another of Keras' optimizers with Keras' defaults: `rmsprop`, `nadam`, `lion`, ..."""
    learning_rate: float = 0.01
    """Step size before scaling, warm-up and decay."""
    momentum: float = 0.9
    """`sgd`: fraction of the last update that the next one keeps."""
    beta_1: float = 0.9
    """`adam`, `adamw`: fraction of the gradients' running mean that a step keeps."""
    beta_2: float = 0.999
    """`adam`, `adamw`: fraction of the squared gradients' running mean that a step keeps."""
    epsilon: float = 1e-7
    """`adam`, `adamw`: constant added to the root of the squares."""
    weight_decay: float = 0.0
    """Decoupled weight decay per step, in units of the learning rate; `adamw` needs one."""
    clip_norm: float | None = None
    """Largest norm of the mean gradient, over all variables; a longer gradient is scaled down to it."""


@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes (Goyal et al. 2017, arXiv:1706.02677)."""

    scaling: str = "none"
    """Scaling with the number of workers: `none`, `linear` or `sqrt`."""
    warmup_epochs: float = 0.0
    """Epochs over which the rate climbs from its base to its scaled value."""
    decay: tuple[tuple[float, float], ...] = ()
    """Pairs `[epoch, factor]`: from that epoch on, the rate is the scaled rate times the factor."""
    shape: str = "constant"
    """How the rate falls from the end of the warm-up to the last step: `constant`, `linear`, or `cosine` (Loshchilov, Hutter 2017)."""
    final: float = 0.0
    """`linear`, `cosine`: the last rate, as a fraction of the highest."""


@dataclass(frozen=True)
class Augment:
    """How training images are augmented, drawn for every image and step from the seed; validation and test images are unchanged."""

    crop: int = 0
    """Pad every side with this many pixels of zeros and crop to the image's size at random (He et al. 2015, arXiv:1512.03385)."""
    flip: bool = False
    """Mirror half of the images from left to right."""
    shift: float = 0.0
    """Shift by up to this fraction of width and height; the border is repeated, or black if images are also cropped, rotated or scaled."""
    rotate: float = 0.0
    """Rotate by up to this many degrees; the area outside the image is black."""
    scale: tuple[float, ...] = ()
    """Enlarge by a factor from this range, `[least, most]`; the area outside the image is black."""
    brightness: float = 0.0
    """Multiply all pixels by 1 plus or minus up to this."""
    contrast: float = 0.0
    """Multiply pixels' distance from the image's mean grey by 1 plus or minus up to this."""
    saturation: float = 0.0
    """Multiply pixels' distance from their own grey by 1 plus or minus up to this."""
    mixup: float = 0.0
    """Mix each image and its label with another of the step; the share is drawn from Beta(this, this) (Zhang et al. 2018,
    arXiv:1710.09412); 0: none, 0.2 is usual."""


@dataclass(frozen=True)
class Reduction:
    """How gradients are summed over the workers."""

    name: str = "auto"
    """`packed`: float32; `half`: 16 bits on the wire; `powersgd`: low-rank factors with error feedback; `auto`: `powersgd`
    where sending all gradients would take more than a tenth of a step's own work, else `packed`."""
    rank: int = 2
    """`powersgd`: left factors sent per step for a tensor of two million elements or more, 1 to 16."""
    max_rank: int = 16
    """`powersgd`: a smaller tensor has a proportionally higher rank, up to this; at or below `rank`, all have the same rank."""
    recycle: int = 4
    """`powersgd`: left factors reused from earlier steps, 0 to 32; they cost work, but hardly any bytes."""
    min_elements: int = 100_000
    """`powersgd`: tensors with fewer elements are sent uncompressed."""
    warmup_steps: int = 0
    """`powersgd`: send the first N steps uncompressed."""
    dtype: str = "bfloat16"
    """`half`: `bfloat16` or `float16`. `powersgd`: `bfloat16` or `float32`, for its left factors."""
    transport: str = "auto"
    """`direct`: a connection between each pair of workers; `tensorflow`: its collectives; `auto`: direct, or TensorFlow's with GPUs."""


@dataclass(frozen=True)
class Strategy:
    """How the hosts of a run work together."""

    name: str = "synchronous"
    """`synchronous`: all workers compute each step together, and have the same weights; `parameter_server`: each worker computes steps of
    its own, and updates weights that servers keep, while the others do the same."""
    staleness: int | None = None
    """`parameter_server`: rounds of one call per worker that the fastest worker may be ahead of the slowest; 0: all end a round before the
    next begins; `null`: any number."""

    @property
    def asynchronous(self) -> bool:
        """Whether workers compute steps of their own."""
        return self.name == PARAMETER_SERVER


@dataclass(frozen=True)
class Checkpoint:
    """When training state is saved."""

    every_steps: int | None = None
    """Also save the state every N steps; it is always saved at the end of an epoch."""
    every_seconds: float | None = None
    """Also save the state whenever the last save began this many seconds ago, by the chief's clock."""
    keep: int = 2
    """How many of the newest states to keep."""
    copy: str = "peer"
    """Where the state is saved besides the chief's disk: `peer`: on the second worker's, if there is one; `all`: on every worker's, as
    always with `recovery.elastic`; `none`."""
    snapshots: str | int = "all"
    """Which epochs' snapshots to keep: `all`; `best`: the one with the highest validation accuracy; `last`; a number N: every Nth
    and the last one."""


@dataclass(frozen=True)
class Recovery:
    """What follows when a worker is killed, freezes, or loses its network or host."""

    max_restarts: int = 20
    """How often all workers start again by themselves, from the last saved state, in one launch; 0: never, the run ends."""
    max_restarts_per_hour: int = 20
    """The same within an hour."""
    rejoin_wait: float = 300.0
    """Seconds in which all hosts must be back after a fault; then the run ends."""
    hang: float = 600.0
    """Seconds without a training step after which a worker is ended; less, once it is known how long steps take."""
    standby: bool = False
    """Whether each worker has a process beside it that has already imported TensorFlow and becomes the next worker: all start again sooner,
    for about 250 MB of memory on each host."""
    elastic: bool = False
    """Whether the other workers go on without a host that is lost. More than half of the launch's hosts must be left, or half of them
    with the first: of two groups that can't reach each other, only one trains."""
    elastic_wait: float = 60.0
    """`elastic`: seconds in which a host may return before the others go on without it; less than `rejoin_wait`."""
    min_workers: int = 1
    """`elastic`: fewest workers that go on."""


@dataclass(frozen=True)
class Telemetry:
    """What is recorded during training."""

    sample_every: int = 1
    """Record the progress of every Nth call in metrics.jsonl."""
    profile_every: int = 50
    """Profile every Nth step: run its parts one after the other and record how long each takes; 0: none."""
    log_every: int = 0
    """Write images/s to the chief's worker.log every N steps, and loss and learning rate every 10 N steps; 0: only progress,
    every 10 s."""
    mlflow: str | None = None
    """Tracking URI of an MLflow server, to which the control node also logs the run; `null`: none."""


@dataclass(frozen=True)
class Config:
    """A run's configuration."""

    seed: int = 1
    """Seed of the weights and of the order of images."""
    model: dict[str, Any] = field(default_factory=lambda: {"name": "lecture_cnn"})
    """`name` of a registered model, and that model's own options."""
    data: Data = Data()
    augment: Augment = Augment()
    train: Train = field(default_factory=Train)
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    strategy: Strategy = Strategy()
    reduction: Reduction = Reduction()
    checkpoint: Checkpoint = Checkpoint()
    recovery: Recovery = Recovery()
    telemetry: Telemetry = Telemetry()


def nearest(name: str, candidates: typing.Iterable[str], prefix: str = "") -> str:
    """A hint ` (did you mean X?)` when a candidate is close to `name`, else an empty string; X is shown with `prefix`, which all share."""
    close = difflib.get_close_matches(str(name), list(candidates), n=1, cutoff=0.5)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""


def find(name: str) -> Path:
    """Path of a configuration given by name (in `trainer/configs`) or by path; ConfigError if there is none."""
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
        try:
            overrides[RENAMED.get(key.strip(), key.strip())] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"set: the value of {key.strip()} is not YAML: {value!r}") from None
    return overrides


def _split_commas(text: str) -> list[str]:
    parts: list[str] = []
    for piece in text.split(","):
        if parts and _is_open(parts[-1].partition("=")[2].strip()):
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
    return [part for part in parts if part.strip()]


def _is_open(value: str) -> bool:
    """Whether a value ends inside brackets, braces or quotes."""
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
    """Make a checked `Config` from plain nested dicts; ConfigError for an unknown key, a wrong type or inconsistent values."""
    config = _section(Config, raw, "")
    check(config)
    return config


def _section(kind: type, raw: Any, prefix: str) -> Any:
    if not isinstance(raw, dict):
        raise ConfigError(f"{prefix.rstrip('.') or 'configuration'}: expected a mapping, got {raw!r}")
    hints = typing.get_type_hints(kind)
    for key in raw:
        if key not in hints:
            names = ", ".join(prefix + name for name in hints)
            raise ConfigError(f"{prefix}{key}: unknown key{nearest(key, hints, prefix)}; known: {names}")
    values = {key: value_of(hints[key], value, prefix + key) for key, value in raw.items()}
    return kind(**values)


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
        by_name = environment.as_texts(value) if str in typing.get_args(kind)[1:] else _numbers(value)
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


def scientific(value: Any) -> Any:
    """The number that a text such as `1e-3` means, which YAML 1.1 reads as a string; other values unchanged."""
    return float(value) if isinstance(value, str) and SCIENTIFIC.fullmatch(value) else value


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


def check(config: Config) -> None:
    """Refuse values that are out of range or inconsistent (ConfigError)."""
    size, limit, sizes, scale = config.data.image_size, config.data.limit_train, config.train.batch_sizes, config.augment.scale
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
    fits = limit is None or (limit >= 1 if isinstance(limit, int) else 0 < limit <= 1)
    _rule(fits, "data.limit_train", limit, "a fraction up to 1.0 or a count from 1")
    fits = sizes in (None, "auto") if isinstance(sizes, str | None) else len(sizes) > 0 and min(sizes) >= 1
    _rule(fits, "train.batch_sizes", sizes, "null, auto, or a list of numbers from 1")
    environment.check(config.train.environment, "train.environment")
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
    "below 2**63": (lambda value: value < 2**63, "seed"),
    "finite": (math.isfinite, "optimizer.learning_rate optimizer.weight_decay schedule.warmup_epochs"),
    "from 0 to 100": (lambda value: 0 <= value <= 100, "augment.mixup"),
    "from 0 to 1": (lambda value: 0 <= value <= 1, "augment.brightness augment.contrast augment.saturation"),
    "above 0 and finite": (
        lambda value: 0 < value < math.inf,
        "optimizer.epsilon recovery.rejoin_wait recovery.hang recovery.elastic_wait",
    ),
    "between 0 and 1": (lambda value: 0 < value < 1, "data.validation_split"),
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


def sizes_misfit(sizes: tuple[int, ...], workers: int) -> str | None:
    """What is wrong with `train.batch_sizes` for this number of workers, and the fix; None if it fits."""
    if len(sizes) == workers:
        return None
    return f"train.batch_sizes: {len(sizes)} sizes ({', '.join(map(str, sizes))}) for {workers} workers; give one for each"


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
