"""File formats for columns, compared: random batches out of many rows, writing, bytes.

    .venv/bin/python -m pip install --target /tmp/formats pyarrow array-record
    PYTHONPATH=.:/tmp/formats .venv/bin/python benchmarks/scripts/columns.py [--rows 1000000] [--images 100000] [--batch 512] [--rounds 200]
    PYTHONPATH=. .venv/bin/python benchmarks/scripts/columns.py --cold 2000 [--batch 512]

Three tables: 28 columns of float32, images 32x32x3 uint8, strings of 5 to 60 bytes. Formats, as far as their packages are there:

- `rows`: Lockstep's, NumPy files with a record per example (`trainer.data.columns`), memory-mapped;
- `columns`: a NumPy file per column, memory-mapped;
- `arrow`: Arrow IPC, memory-mapped, in batches of 65,536 rows joined to one by pyarrow's `take`;
- `arrow-numpy`: the same file with one batch, its columns gathered by NumPy without a copy in between;
- `array-record`: ArrayRecord with groups of one record, as Grain reads it.

All are gathered into the same arrays, which are compared; formats take turns, the first round is discarded. Times are medians over
rounds; `CPU` is that of all threads. Files are in the page cache.

`--cold` writes a file of this many MB (records of 200 bytes) and reads five batches from it after its pages were dropped from memory, with
and without the kernel's read-ahead, in three rounds.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared import script
from control.common import text
from control.datasets.listing.column_writer import Writer
from trainer.data.columns import Columns, map_at_random
from trainer.data.spec import Leaf, Spec

FEATURES, BLOCK = 28, 65_536
RECORD, BATCHES = 200, 5
"""`--cold`: bytes of a record, batches in a round."""
Table = list[Any]
"""The values of each leaf."""
Gather = Callable[[np.ndarray], list[Any]]
Format = Callable[[Path, Spec, Table], Gather]
"""Writes a table; opened, it gathers rows."""


def main() -> None:
    """Measure and print."""
    given = script.parser(__doc__, rows=1_000_000, images=100_000, batch=512, rounds=200, cold=0).parse_args()
    if given.cold:
        print(
            text.table(["read-ahead", "round", *(f"batch {number}, ms" for number in range(1, BATCHES + 1))], cold(given.cold, given.batch))
        )
        return
    rows = []
    for name, (spec, table) in tables(given.rows, given.images).items():
        with tempfile.TemporaryDirectory() as folder:
            rows += [[name, *row] for row in measured(Path(folder), spec, table, given.batch, given.rounds)]
    print(text.table(["table", "format", "written in s", "MB", f"ms per {given.batch} rows", "CPU ms"], rows))


def cold(megabytes: int, batch: int) -> list[list[Any]]:
    """Milliseconds of the first batches from a file that is not in memory."""
    random, rows = np.random.default_rng(0), []
    with tempfile.TemporaryDirectory(dir=script.ROOT) as folder:
        path, count = Path(folder) / "rows.npy", megabytes * 10**6 // RECORD
        whole = np.lib.format.open_memmap(path, "w+", np.uint8, (count, RECORD))
        for start in range(0, count, 10**6):
            whole[start : start + 10**6] = 1
        whole.flush()
        del whole
        for number, ahead in ((number, ahead) for number in range(1, 4) for ahead in (True, False)):
            handle = os.open(path, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)
            mapped = np.lib.format.open_memmap(path, "r")
            if not ahead:
                map_at_random(mapped)
            taken = []
            for _ in range(BATCHES):
                begun = time.perf_counter()
                mapped.view(np.ndarray).take(random.integers(0, count, batch), axis=0)
                taken.append(text.Number((time.perf_counter() - begun) * 1e3, 0))
            rows.append(["yes" if ahead else "no", number, *taken])
            del mapped
    return rows


def tables(rows: int, images: int) -> dict[str, tuple[Spec, Table]]:
    """Each table's spec and values."""
    random = np.random.default_rng(0)
    leaves = tuple(Leaf(f"x[{number}]", "float32", ()) for number in range(FEATURES))
    letters = random.integers(97, 123, 64 * rows, dtype=np.uint8).tobytes()
    lengths = random.integers(5, 61, rows).tolist()
    strings = np.array([letters[64 * number : 64 * number + length] for number, length in enumerate(lengths)], object)
    return {
        f"{rows:,} x {FEATURES} float32": (Spec([list(range(FEATURES))], leaves), list(random.random((FEATURES, rows), np.float32))),
        f"{images:,} images": (
            Spec([0], (Leaf("x", "uint8", (32, 32, 3)),)),
            [random.integers(0, 256, (images, 32, 32, 3), dtype=np.uint8)],
        ),
        f"{rows:,} strings": (Spec([0], (Leaf("x", "string", ()),)), [strings]),
    }


def measured(folder: Path, spec: Spec, table: Table, batch: int, rounds: int) -> Iterable[list[Any]]:
    """A row for each format."""
    random, count = np.random.default_rng(1), len(table[0])
    gathers: dict[str, Gather] = {}
    written: dict[str, tuple[float, float]] = {}
    for name, (package, write) in FORMATS.items():
        if package and not find_spec(package):
            continue
        place = folder / name
        place.mkdir()
        begun = time.perf_counter()
        gathers[name] = write(place, spec, table)
        written[name] = time.perf_counter() - begun, sum(path.stat().st_size for path in place.iterdir()) / 1e6
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in gathers}
    for _ in range(rounds + 1):
        indices = random.integers(0, count, batch)
        for name, gather in gathers.items():
            begun, cpu = time.perf_counter(), time.process_time()
            gathered = gather(indices)
            times[name].append((time.perf_counter() - begun, time.process_time() - cpu))
            for values, whole in zip(gathered, table, strict=True):
                assert np.array_equal(values, whole[indices]), name
    for name, taken in times.items():
        wall, busy = (statistics.median(pair[which] for pair in taken[1:]) * 1e3 for which in (0, 1))
        yield [name, text.Number(written[name][0], 1), text.Number(written[name][1], 0), text.Number(wall, 2), text.Number(busy, 2)]


def _in_rows(folder: Path, spec: Spec, table: Table) -> Gather:
    """Lockstep's own files."""
    with Writer(folder, spec, "train") as writer:
        for start in range(0, len(table[0]), BLOCK):
            writer.append([values[start : start + BLOCK] for values in table])
    columns, nested = Columns(folder, spec, "train", len(table[0])), isinstance(spec.structure[0], list)

    def gather(indices: np.ndarray) -> list[Any]:
        (x,) = columns.gather(indices)
        return list(x) if nested else [x]

    return gather


def _in_columns(folder: Path, spec: Spec, table: Table) -> Gather:
    """A NumPy file per column; strings as by `_in_rows`, which has a file for them anyway."""
    if spec.leaves[0].dtype == "string":
        return _in_rows(folder, spec, table)
    for number, values in enumerate(table):
        np.save(folder / f"{number}.npy", values)
    mapped = [np.load(folder / f"{number}.npy", mmap_mode="r").view(np.ndarray) for number in range(len(table))]
    return lambda indices: [values.take(indices, axis=0) for values in mapped]


def _arrow(folder: Path, table: Table, block: int | None) -> Any:
    import pyarrow as pa

    arrays = []
    for values in table:
        if values.dtype.kind == "O":
            arrays.append(pa.array(values, pa.binary()))
        elif values.ndim > 1:
            flat = pa.array(values.reshape(-1))
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, values[0].size))
        else:
            arrays.append(pa.array(values))
    whole = pa.table({str(number): array for number, array in enumerate(arrays)})
    with pa.OSFile(str(folder / "table.arrow"), "wb") as sink, pa.ipc.new_file(sink, whole.schema) as writer:
        writer.write_table(whole, max_chunksize=block)
    return pa.ipc.open_file(pa.memory_map(str(folder / "table.arrow"))).read_all()


def _from_arrow(column: Any, leaf: Leaf) -> Any:
    if leaf.dtype == "string":
        return np.array(column.to_pylist(), object)
    flat = column.flatten() if leaf.shape else column
    return flat.to_numpy(zero_copy_only=False).reshape(-1, *leaf.shape)


def _in_arrow(folder: Path, spec: Spec, table: Table) -> Gather:
    """Arrow IPC, and pyarrow's own take."""
    opened = _arrow(folder, table, BLOCK)

    def gather(indices: np.ndarray) -> list[Any]:
        taken = opened.take(indices).combine_chunks()
        return [_from_arrow(column.chunk(0), leaf) for column, leaf in zip(taken.columns, spec.leaves, strict=True)]

    return gather


def _in_arrow_for_numpy(folder: Path, spec: Spec, table: Table) -> Gather:
    """Arrow IPC, whose buffers NumPy gathers from; strings by pyarrow."""
    opened = _arrow(folder, table, None)
    chunks = [column.chunk(0) for column in opened.columns]
    if spec.leaves[0].dtype == "string":
        return lambda indices: [_from_arrow(chunk.take(indices), leaf) for chunk, leaf in zip(chunks, spec.leaves, strict=True)]
    mapped = [_from_arrow(chunk, leaf) for chunk, leaf in zip(chunks, spec.leaves, strict=True)]
    return lambda indices: [values.take(indices, axis=0) for values in mapped]


def _in_array_record(folder: Path, spec: Spec, table: Table) -> Gather:
    """ArrayRecord: a record is an example's bytes."""
    from array_record.python.array_record_data_source import ArrayRecordDataSource
    from array_record.python.array_record_module import ArrayRecordWriter

    path, string = str(folder / "table.array_record"), spec.leaves[0].dtype == "string"
    dtype = np.dtype([(str(number), leaf.dtype, leaf.shape) for number, leaf in enumerate(spec.leaves)]) if not string else None
    writer = ArrayRecordWriter(path, "group_size:1,uncompressed")
    if dtype is None:
        for value in table[0]:
            writer.write(value)
    else:
        rows = np.empty(len(table[0]), dtype)
        for number, values in enumerate(table):
            rows[str(number)] = values
        for row in rows:
            writer.write(row.tobytes())
    writer.close()
    opened = ArrayRecordDataSource([path])

    def gather(indices: np.ndarray) -> list[Any]:
        records = opened.__getitems__(indices.tolist())
        if dtype is None:
            return [np.array(records, object)]
        rows = np.frombuffer(b"".join(records), dtype)
        return [np.ascontiguousarray(rows[name]) for name in dtype.names or ()]

    return gather


FORMATS: dict[str, tuple[str, Format]] = {
    "rows": ("", _in_rows),
    "columns": ("", _in_columns),
    "arrow": ("pyarrow", _in_arrow),
    "arrow-numpy": ("pyarrow", _in_arrow_for_numpy),
    "array-record": ("array_record", _in_array_record),
}
"""Each format, and the package that it needs."""

if __name__ == "__main__":
    main()
