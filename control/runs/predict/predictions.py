"""Predictions of new examples: the options of predict.yml, the checked results of the hosts, and the output file."""

import contextlib
import csv
import functools
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from control.common import text
from control.common.operator_variables import boolean, integer
from control.datasets.publishing import new_examples
from control.datasets.sources.parquet_rows import INSTALL, PARQUET
from control.runs.predict.trained_model import values_of
from control.runs.results.run_folder import RunFolder
from trainer.common.errors import ConfigError, LockstepError
from trainer.common.files import replacing
from trainer.common.safe_text import printable
from trainer.common.suggest import nearest
from trainer.data.spec import Leaf
from trainer.evaluation.measures import Classes
from trainer.evaluation.predict import BLOCK, PROBABILITY, output_name

FOLDER = "predict"
"""Folder of a prediction: in a run directory on its hosts, and in `.lockstep` on the control node."""
TYPES = (".csv", PARQUET)
TOP = 3
"""Number of most probable classes shown for an image."""
SHOWN_ROWS, SHOWN_COLUMNS = 5, 6
Columns = dict[str, np.ndarray]
"""Values of some rows, by column."""


@dataclass(frozen=True)
class Prediction:
    """A planned prediction."""

    run: str
    epoch: int
    called: str
    """The input, as the user typed it."""
    rows: list[int]
    """Number of rows, by host."""
    outputs: list[Leaf]
    classes: list[str]
    """Names of the run's classes."""
    goals: list[Classes | None]
    """Classes by output; None if the output of a compiled model is no class."""
    images: bool
    names: list[str]
    """Names of images, by row."""

    @classmethod
    def of(cls, planned: Mapping[str, Any], names: Sequence[str] = ()) -> "Prediction":
        """Make a prediction from the result of `control.runs.predict.prediction_job.prepare` and `run`, `epoch`, `called`, `classes`."""
        outputs = [Leaf(one["name"], one["dtype"], tuple(one["shape"])) for one in planned["outputs"]]
        goals = [None if one["goal"] is None else Classes(**one["goal"]) for one in planned["outputs"]]
        same = {name: planned[name] for name in ("run", "epoch", "called", "rows", "classes", "images")}
        return cls(**same, outputs=outputs, goals=goals, names=list(names))

    @property
    def count(self) -> int:
        """Number of rows on all hosts."""
        return sum(self.rows)

    @property
    def ranks(self) -> bool:
        """True if each row is shown with its most probable classes, as for images."""
        return [leaf.name for leaf in self.outputs] == [PROBABILITY] and len(self.classes) == values_of(self.outputs[0])

    def class_names(self, goal: Classes) -> list[str]:
        """Names of the classes of an output; their numbers if they have no names."""
        return self.classes if len(self.classes) == goal.count else [str(number) for number in range(goal.count)]

    @functools.cached_property
    def columns(self) -> list[str]:
        """Names of the columns, each once."""
        first = ["file" if self.images else "row"]
        if self.ranks:
            numbers = range(1, min(TOP, len(self.classes)) + 1)
            return [*first, *(f"{name}{'' if number == 1 else f'_{number}'}" for number in numbers for name in ("class", PROBABILITY))]
        every = zip(self.outputs, self.goals, strict=True)
        return text.distinct([*first, *(name for leaf, goal in every for name in self._named(leaf, goal))])

    def _named(self, leaf: Leaf, goal: Classes | None) -> list[str]:
        """Names of an output's columns: `class` if it is a class; then its name, with the class or position of each of several numbers."""
        count, judged = values_of(leaf), [] if goal is None else ["class" if len(self.outputs) == 1 else f"{leaf.name}_class"]
        if count == 1:
            return [*judged, leaf.name]
        if goal and goal.count == count:
            return [*judged, *(f"{leaf.name}_{name}" for name in self.class_names(goal))]
        return [*judged, *(f"{leaf.name}_{'_'.join(map(str, place))}" for place in np.ndindex(*(side or 0 for side in leaf.shape)))]

    def table(self, first: int, values: Sequence[np.ndarray]) -> Columns:
        """Columns of the rows from `first` on, given the values `[n, ...]` of each output."""
        count = len(values[0])
        numbers = np.arange(first, first + count)
        labels = np.array([self.names[number] for number in numbers], object) if self.images else numbers + 1
        if self.ranks:
            return dict(zip(self.columns, [labels, *self._ranked(values[0])], strict=True))
        columns = [labels]
        for one, goal in zip(values, self.goals, strict=True):
            columns += [np.array(self.class_names(goal), object)[goal.of_outputs(one)]] if goal else []
            columns += [*one.reshape(count, -1).T]
        return dict(zip(self.columns, columns, strict=True))

    def _ranked(self, chances: np.ndarray) -> list[np.ndarray]:
        order, names = np.argsort(-chances, axis=1, kind="stable")[:, :TOP], np.array(self.classes, object)
        ranked = np.take_along_axis(chances, order, axis=1)
        return [column for place in range(order.shape[1]) for column in (names[order[:, place]], ranked[:, place])]


@dataclass(frozen=True)
class PredictionRequest:
    """The parsed variables of predict.yml, or of evaluate.yml with an image."""

    called: str
    """The input as typed."""
    given: str
    """The input with an absolute path, relative to the folder in which the command was typed."""
    epoch: int
    hosts: int
    """Number of the run's hosts that predict."""
    output: Path | None
    """Absolute path of the output file; None if nothing is to be written."""

    @classmethod
    def of(cls, options: Mapping[str, Any], run: Path, hosts: int) -> "PredictionRequest":
        """Parse the variables for a run on a number of `hosts`.

        Raises:
            LockstepError: missing input, several epochs or one without a snapshot, more hosts than the run has; `output` is no
                CSV or Parquet file in an existing folder, exists, or is part of the input; pyarrow is missing.
        """
        variable = "image" if "image" in options else "input"
        if variable not in options:
            raise ConfigError("input: missing; say what to predict: -e input=FILE_OR_FOLDER, or -e input=FILE.py:FUNCTION")
        given, asked = _source(str(options[variable])), options.get("epoch", "best")
        epochs = RunFolder(run).choose_epochs(asked)
        if len(epochs) != 1:
            raise ConfigError(
                f"epoch={asked}: predictions are those of one snapshot; give one epoch, as in epoch=best or epoch={epochs[-1]}"
            )
        number = integer("workers", options["workers"]) if "workers" in options else hosts
        if number > hosts:
            raise ConfigError(f"workers={number}: the run has {text.count(hosts, 'host')}; give at most {hosts}")
        output = _destination(options.get("output"), boolean("overwrite", options.get("overwrite", False)))
        path = Path(given)
        if output is not None and path.exists() and (output == path or (path.is_dir() and output.is_relative_to(path))):
            raise ConfigError(f"output={output}: it is part of the input; give a file elsewhere")
        return cls(f"{variable}={options[variable]}", given, epochs[0], number, output)


def _source(asked: str) -> str:
    file, colon, function = asked.rpartition(":")
    if colon and file.endswith(".py"):
        return f"{Path(file).expanduser().resolve()}:{function}"
    path = Path(asked).expanduser()
    return str(path.resolve()) if path.exists() else asked


def _destination(asked: Any, replace: bool) -> Path | None:
    if asked is None:
        return None
    path = Path(str(asked)).expanduser().resolve()
    if path.suffix.lower() not in TYPES:
        raise ConfigError(f"output={asked}: expected a file {' or '.join(f'NAME{one}' for one in TYPES)}{nearest(path.suffix, TYPES)}")
    if not path.parent.is_dir():
        raise ConfigError(f"output={asked}: there is no folder {path.parent}; create it: mkdir -p {path.parent}")
    if path.is_dir() or (path.exists() and not replace):
        what = "is a folder; give another name" if path.is_dir() else "already exists. Fix: another name, or -e overwrite=true"
        raise ConfigError(f"output={asked}: it {what}")
    if path.suffix.lower() == PARQUET:
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise ConfigError(f"output={asked}: writing Parquet needs pyarrow. {INSTALL}") from None
    return path


def collected(prediction: Prediction, folder: Path, hosts: Sequence[str]) -> list[list[np.ndarray]]:
    """Memory-mapped outputs of each host, in order; empty for a host without rows.

    Args:
        prediction: as planned.
        folder: the prediction's folder, with `results(folder, rank)`.
        hosts: names of the hosts, by rank.

    Raises:
        LockstepError: a host's file is missing, or not an array of the expected type and shape.
    """
    every = []
    for rank, count in enumerate(prediction.rows):
        arrays = []
        for number, leaf in enumerate(prediction.outputs if count else ()):
            path = results(folder, rank) / FOLDER / output_name(number)
            arrays.append(_mapped(path, leaf.stored_dtype, (count, *(side or 0 for side in leaf.shape)), hosts[rank]))
        every.append(arrays)
    return every


def sizes(planned: Mapping[str, Any], rank: int) -> list[int]:
    """Expected bytes of each output of a host."""
    prediction = Prediction.of(planned)
    return [prediction.rows[rank] * values_of(leaf) * leaf.stored_dtype.itemsize for leaf in prediction.outputs]


def results(folder: Path, rank: int) -> Path:
    """Folder in which a host's results are collected."""
    return folder / f"{rank}-results"


def _mapped(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], host: str) -> np.ndarray:
    try:
        # Opens NumPy's own format only: no objects, which would run code.
        array = np.lib.format.open_memmap(path, "r")
    except Exception as error:  # a damaged header makes NumPy raise nearly any exception
        raise LockstepError(f"{host}: it gave no predictions that can be read ({path.name}: {printable(error, 200)})") from None
    if array.dtype != dtype or array.shape != shape or np.isfortran(array):
        actual, expected = (f"{list(sides)} of {printable(kind, 60)}" for sides, kind in ((array.shape, array.dtype), (shape, dtype)))
        raise LockstepError(f"{host}: its predictions ({path.name}) are {actual}; {expected} were asked for")
    return array.view(np.ndarray)


def tables(prediction: Prediction, arrays: Sequence[Sequence[np.ndarray]]) -> Iterator[Columns]:
    """The rows of all hosts in the input's order, in blocks."""
    for first in range(0, prediction.count, BLOCK):
        host, start = new_examples.Parts.place(first, len(prediction.rows))
        yield prediction.table(first, [array[start : start + BLOCK] for array in arrays[host]])


def write_predictions(path: Path, blocks: Iterator[Columns]) -> None:
    """Write a CSV or Parquet file, whole or not at all."""
    with replacing(path) as part, (_parquet if path.suffix.lower() == PARQUET else _csv)(part) as add:
        for block in blocks:
            add(block)


@contextlib.contextmanager
def _csv(path: Path) -> Iterator[Callable[[Columns], None]]:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")

        def add(block: Columns) -> None:
            if not stream.tell():
                writer.writerow(block)
            writer.writerows(zip(*map(_texts, block.values()), strict=True))

        yield add


def _texts(column: np.ndarray) -> list[str]:
    """Values as text; a number has only the digits that its type can hold."""
    return list((column if column.dtype.kind == "O" else column.astype(str)).tolist())


@contextlib.contextmanager
def _parquet(path: Path) -> Iterator[Callable[[Columns], None]]:
    import pyarrow
    from pyarrow import parquet

    with contextlib.ExitStack() as stack:
        writers: list[Any] = []

        def add(block: Columns) -> None:
            table = pyarrow.table({name: pyarrow.array(np.ascontiguousarray(column)) for name, column in block.items()})
            if not writers:
                writers.append(stack.enter_context(parquet.ParquetWriter(path, table.schema)))
            writers[0].write_table(table)

        yield add


def not_finite(columns: Columns) -> int:
    """Count of numbers that are NaN or infinite."""
    return sum(int(np.count_nonzero(~np.isfinite(column))) for column in columns.values() if column.dtype.kind == "f")


def show(prediction: Prediction, first: Columns | None, output: str, warnings: Sequence[str], hosts: int) -> str:
    """Summary of a prediction, made or planned: its first rows, and the next commands.

    Args:
        prediction: as planned.
        first: the first block; None: nothing was predicted (`--check`).
        output: the file; empty if there is none.
        warnings: each becomes a separate line.
        hosts: number of hosts that predict.
    """
    where = f" by {prediction.run}, epoch {prediction.epoch}"
    if first is not None and prediction.ranks and prediction.count == 1 and not output:
        return f"{prediction.called.partition('=')[2]}{where}\n{_classes(first)}"
    noun = "image" if prediction.images else "row"
    file = f", {'to be written' if first is None else 'written'} to {output}" if output else ""
    head = f"{text.count(prediction.count, noun)} of {prediction.called}{where}, on {text.count(hosts, 'host')}{file}"
    parts = [head, *(f"warning: {warning}" for warning in warnings), _first_rows(prediction, first)]
    run, given = f"-e run={prediction.run}", shlex.quote(f"input={prediction.called.partition('=')[2]}")
    again = [("write them", f"ansible-playbook predict.yml {run} -e {given} -e output=FILE.csv")] if not output else []
    commands = [*again, ("how good is it", f"ansible-playbook evaluate.yml {run} -e epoch={prediction.epoch}")]
    return "\n".join([*parts, "", text.next_commands(commands)])


def _classes(first: Columns) -> str:
    """The most probable classes of one image, a line each."""
    cells = [column[0] for column in first.values()][1:]
    return text.table(["class", PROBABILITY], [[name, f"{chance:.1%}"] for name, chance in zip(cells[::2], cells[1::2], strict=True)])


def _first_rows(prediction: Prediction, first: Columns | None) -> str:
    columns = prediction.columns
    shown, more = columns[:SHOWN_COLUMNS], len(columns) - SHOWN_COLUMNS
    wider = [text.count(more, "more column")] if more > 0 else []
    if first is None:
        return f"  columns: {printable(', '.join(shown), 500)}{f'  and {wider[0]}' if wider else ''}"
    rows = [[_cell(first[name][row]) for name in shown] for row in range(min(SHOWN_ROWS, len(first[shown[0]])))]
    left = prediction.count - len(rows)
    rest = [*([text.count(left, "more row")] if left else []), *wider]
    return f"{text.table([printable(name, 40) for name in shown], rows)}{f'{chr(10)}  and {text.listed(rest)}' if rest else ''}"


def _cell(value: Any) -> Any:
    if isinstance(value, np.floating):
        return text.Number(float(value), 4) if np.isfinite(value) else str(value)
    return printable(value, 40) if isinstance(value, str) else int(value)


def names_of(folder: Path) -> list[str]:
    """Names of the images in a prediction's folder; empty for columns."""
    path = folder / new_examples.NAMES
    return list(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else []
