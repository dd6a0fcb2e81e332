"""Rows of TensorBoard's HParams table, one per run, with its configuration and results.

A row is one small event file in the run's `logs/`, above `logs/train` and `logs/validation`. TensorBoard assigns the configuration in
a folder to all curves below it. A column shows the last value of a curve, which is found by its path below that folder. The package
`tensorboard` alone writes the file; nothing here needs TensorFlow. Fields and tags:
`tensorboard/plugins/hparams/api.proto`, `plugin_data.proto`.
"""

import datetime
import io
import math
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import (
    DATA_TYPE_BOOL,
    DATA_TYPE_FLOAT64,
    DATA_TYPE_STRING,
    STATUS_FAILURE,
    STATUS_SUCCESS,
    Experiment,
    HParamInfo,
    MetricInfo,
    MetricName,
)
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.summary.writer.record_writer import RecordWriter

from control.common import configurations
from control.runs.results.hyperparameters import hyperparameters
from control.runs.results.run_folder import RunFolder
from control.runs.results.summary import Summary as RunSummary
from trainer.common.errors import LockstepError
from trainer.common.files import replacing
from trainer.rundir.launch_record import training

FIRST = ("model.name", "optimizer.learning_rate", "reduction.name", "train.global_batch", "workers")
"""First columns of the table: TensorBoard shows five until the user selects others, sorted by whether they differ, then by name."""
VALIDATION, TEST, SPEED = "result/validation_accuracy", "result/test_accuracy", "result/images_per_s"
BEST = "result/best"
# Names from history.csv, short enough for an axis. The first five are shown, too. Values that are often missing come last, because
# a run without a value disappears from the parallel coordinates.
METRICS = (
    (VALIDATION, "", "best val_accuracy"),
    (SPEED, "", "images_per_s"),
    ("accuracy", "validation", "val_accuracy"),
    ("accuracy", "train", "accuracy"),
    ("loss", "validation", "val_loss"),
    ("loss", "train", "loss"),
    (BEST, "", "best of train.monitor"),
    (TEST, "", "test accuracy"),
)
ENDS = {"SUCCEEDED": STATUS_SUCCESS, "FAILED": STATUS_FAILURE}
FILES = "events.out.tfevents.*.hparams"


def write_all(runs: Iterable[RunFolder]) -> tuple[int, list[str]]:
    """Update the rows of all runs that have begun to train.

    Returns:
        The number of written files, and a sentence for each run that can't have a row.
    """
    written, complaints = 0, []
    for run in runs:
        try:
            written += (run.path / "logs").is_dir() and (run.path / "cluster.json").is_file() and write_row(run)
        except LockstepError as error:
            complaints.append(str(error))
    return written, complaints


def write_row(run: RunFolder) -> bool:
    """Write the row of a run (or a trial) if it is missing or outdated; the same files give the same bytes.

    Raises:
        LockstepError: config.yml, cluster.json, summary.json or evaluations.csv is not in Lockstep's format.
    """
    logs = run.path / "logs"
    events, before = _events(run), sorted(logs.glob(FILES))
    if len(before) == 1 and _records(events) == before[0].read_bytes():
        return False
    # A running TensorBoard has read the old file to its end: it only notices a new name that sorts after the old one.
    number = 1 + max((int(path.suffixes[-2][1:]) for path in before), default=0)
    with replacing(logs / FILES.replace("*", f"{number:06d}")) as part:
        part.write_bytes(_records(events))
    for path in before:
        path.unlink()
    return True


def _events(run: RunFolder) -> list[Event]:
    """The events that make a run's row."""
    try:
        return _row(run)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, LockstepError) as error:
        what = (str(error) if isinstance(error, LockstepError) else f"{type(error).__name__}: {error}").splitlines()[0]
        message = f"{run.name}: no row in TensorBoard's HParams table, for its files can't be read ({what}); its curves are shown"
        raise LockstepError(message) from error


def _row(run: RunFolder) -> list[Event]:
    config, summary, record = configurations.load(run.path / "config.yml"), run.summary, run.record
    at = datetime.datetime.fromisoformat(record.created_at).timestamp()
    values = hyperparameters(config, len(training(record.hosts)), record.compiled)
    if summary.reduction:
        values["reduction.name"] = summary.reduction["name"]
    parts = [_part(metadata.EXPERIMENT_TAG, experiment=_experiment(values))]
    parts += [_part(metadata.SESSION_START_INFO_TAG, session_start_info=_start(run.name, values, at))]
    if summary.state in ENDS:
        end = SessionEndInfo(status=ENDS[summary.state], end_time_secs=at + (summary.seconds_total or 0))
        parts += [_part(metadata.SESSION_END_INFO_TAG, session_end_info=end)]
    events = [Event(wall_time=at, file_version="brain.Event:2"), Event(wall_time=at, summary=Summary(value=parts))]
    for tag, (value, step) in _results(summary, run.evaluations.accuracies).items():
        events.append(Event(wall_time=at, step=step, summary=Summary(value=[_scalar(tag, value)])))
    return events


def _results(summary: RunSummary, tested: dict[int, float]) -> dict[str, tuple[float, int]]:
    """Results of a run, as far as known: tag -> (accuracy from 0 to 1, metric or images/s, epoch)."""
    best = summary.best or {}
    values = {
        VALIDATION: (best.get("val_accuracy"), best.get("epoch")),
        BEST: (next((value for name, value in best.items() if name != "epoch"), None), best.get("epoch")),
        SPEED: (summary.images_per_s, summary.epochs_done),
        TEST: (tested.get(best.get("epoch", 0)), best.get("epoch")),
    }
    return {tag: (value, step) for tag, (value, step) in values.items() if value is not None and step is not None and math.isfinite(value)}


def _experiment(values: dict[str, bool | float | str]) -> Experiment:
    """The table's columns. TensorBoard uses one run's columns for all runs, so every key is listed, even if this run lacks it."""
    kinds = {**dict(_keys()), **{name: _type(type(value)) for name, value in values.items()}}
    columns = [HParamInfo(name=name, type=kinds[name], differs=name in FIRST) for name in sorted(kinds)]
    return Experiment(
        hparam_infos=columns,
        metric_infos=[MetricInfo(name=MetricName(tag=tag, group=group), display_name=shown) for tag, group, shown in METRICS],
    )


def _keys() -> Iterator[tuple[str, int]]:
    """Every configuration key by dotted name, with TensorBoard's type; sections of free keys (`model`) left out."""
    for name, hint in configurations.all_keys():
        if typing.get_origin(hint) is not dict:
            yield name, _type(*(typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)))


def _type(*kinds: Any) -> int:
    if bool in kinds:
        return int(DATA_TYPE_BOOL)
    return int(DATA_TYPE_FLOAT64 if int in kinds or float in kinds else DATA_TYPE_STRING)


def _start(name: str, values: dict[str, bool | float | str], at: float) -> SessionStartInfo:
    start = SessionStartInfo(group_name=name, start_time_secs=at)
    for key, value in values.items():
        field = {DATA_TYPE_BOOL: "bool_value", DATA_TYPE_FLOAT64: "number_value", DATA_TYPE_STRING: "string_value"}[_type(type(value))]
        setattr(start.hparams[key], field, value)
    return start


def _part(tag: str, **info: Any) -> Summary.Value:
    content = HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **info).SerializeToString(deterministic=True)
    plugin = SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME, content=content)
    return Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=metadata.NULL_TENSOR)


def _scalar(tag: str, value: float) -> Summary.Value:
    plugin = SummaryMetadata.PluginData(plugin_name="scalars")
    described = SummaryMetadata(plugin_data=plugin, data_class=DATA_CLASS_SCALAR)
    return Summary.Value(tag=tag, metadata=described, tensor=TensorProto(dtype=DT_FLOAT, float_val=[value]))


def _records(events: list[Event]) -> bytes:
    """Events in the format of an event file."""
    stream = io.BytesIO()
    writer = RecordWriter(stream)
    for event in events:
        writer.write(event.SerializeToString(deterministic=True))
    return stream.getvalue()
