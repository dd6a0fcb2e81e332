"""The keys of a configuration and their defaults: frozen dataclasses, in the manner of torchtitan's `JobConfig`."""

from dataclasses import dataclass, field
from typing import Any

BALANCED = "balanced"
"""`train.class_weight` that follows from how many examples each class has."""
PARAMETER_SERVER = "parameter_server"
"""`strategy.name` of an asynchronous run."""


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
    test_split: float = 0.2
    """Fraction of all examples held out for testing before that, where a dataset has none for it: folders of classes (of each class, at
    least one image), tables."""
    limit_train: int | float | None = None
    """Use only part of the training examples: a float up to 1.0 is a fraction, an integer a count."""
    limit_validation: int | float | None = None
    """Validate on only part of the examples that are held out for it: a fraction or a count, as `limit_train`."""
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
    """Keep the initial weights of layers that the file of `weights` does not fit; else such layers are refused."""
    weights_by_name: bool = False
    """Load each layer's weights from the layer of its name, whatever other layers the models have; layers without one keep their own."""
    optimizer_state: bool = False
    """Continue a compiled model's optimizer with the rate, steps and averages in the file of `weights`; else the optimizer starts fresh."""
    last_layers: int | None = None
    """Train only the last N layers that have weights, and keep the others' as they are, as with a model from `weights`; null: all."""
    class_weight: str | dict[str, float] | None = None
    """Weight of a class's examples in the training loss, by the class's name or number, as in `{cat: 2.5}` (other classes: 1); `balanced`:
    training examples / (classes * examples of the class)."""
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
        """True if workers compute steps of their own."""
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
    """Epochs whose snapshots are kept: `all`; `best`: the one with the highest validation accuracy; `last`; a number N: every Nth
    and the last one."""


@dataclass(frozen=True)
class Recovery:
    """Reaction to a worker that is killed, freezes, or loses its network or host."""

    max_restarts: int = 20
    """How often all workers start again by themselves, from the last saved state, in one launch; 0: never, the run ends."""
    max_restarts_per_hour: int = 20
    """Most restarts of all workers within an hour."""
    rejoin_wait: float = 300.0
    """Seconds in which all hosts must be back after a fault; then the run ends."""
    hang: float = 600.0
    """Seconds without a training step after which a worker is ended; less, once it is known how long steps take."""
    standby: bool = False
    """Keep a process beside each worker that has already imported TensorFlow and forks the next worker: restarts are faster,
    for about 250 MB of memory on each host."""
    elastic: bool = False
    """Let the other workers go on without a lost host. More than half of the launch's hosts must be left, or half of them
    with the first: of two groups that can't reach each other, only one trains."""
    elastic_wait: float = 60.0
    """`elastic`: seconds in which a host may return before the others go on without it; less than `rejoin_wait`."""
    min_workers: int = 1
    """`elastic`: fewest workers that go on."""


@dataclass(frozen=True)
class Telemetry:
    """Records made during training."""

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
class Report:
    """Head of the run's report; `report.yml -e set=report.title=...` may still change it."""

    author: str | None = None
    """Who hands the run in, such as a name and a student number."""
    title: str | None = None
    """Purpose of the report, such as a course and an exercise; default: the run's name."""


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
    report: Report = Report()


def sizes_misfit(sizes: tuple[int, ...], workers: int) -> str | None:
    """Error of `train.batch_sizes` for this number of workers, and the fix; None if the sizes fit."""
    if len(sizes) == workers:
        return None
    return f"train.batch_sizes: {len(sizes)} sizes ({', '.join(map(str, sizes))}) for {workers} workers; give one for each"
