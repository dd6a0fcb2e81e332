"""How fast a served model answers, by rows per request and clients at once, beside Keras' `predict` of as many rows in this process.

    .venv/bin/python benchmarks/scripts/serving.py --model NAME [--address http://127.0.0.1:8501] [--clients 1,8,32] [--rows 1,32,256]
        [--seconds 5] [--bad 0.05]

The model is exported, and served by `serve.yml`; images or rows of a table are made up. `--bad` is the share of requests that are wrong in
various ways, mixed in: each must be answered with a 4xx, every other one with 200. Clients are threads of this process, each with a
connection of its own, and take a part of the machine's processors, too.
"""

import base64
import http.client
import io
import json
import random
import statistics
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from benchmarks.shared import script
from control.common import project, text
from control.serving import protocol
from control.serving.signature import ExportedModel, VersionFolder
from trainer.data.spec import STRING, Leaf
from trainer.evaluation.predict import BLOCK

BAD: tuple[bytes, ...] = (
    b"{",
    b"[]",
    b'{"instances": []}',
    b'{"instances": [{"nothing": 1}]}',
    b'{"instances": "a", "inputs": 3}',
    b"\xff",
)
CALLS = 20
"""Calls of `predict`."""
WARM_UP = 20
"""Requests of each cell before those that count."""


class Cell(NamedTuple):
    """Result of one combination."""

    clients: int
    rows: int
    requests: int
    bad: int
    errors: int
    """Answers of another status than the request deserved."""
    seconds: float
    latencies: np.ndarray
    """Seconds of each good request."""


def main() -> None:
    """Measure each combination; print a table."""
    line = script.parser(__doc__, seconds=5)
    line.add_argument("--model", required=True)
    line.add_argument("--bad", type=float, default=0.05)
    line.add_argument("--address", default="http://127.0.0.1:8501")
    line.add_argument("--clients", default="1,8,32")
    line.add_argument("--rows", default="1,32,256")
    arguments = line.parse_args()
    folder = project.EXPORTS / str(arguments.model)
    if not (every := VersionFolder(folder).numbers):
        sys.exit(f"{folder} has no exported model: ansible-playbook export.yml")
    exported = ExportedModel.read(folder / str(every[-1]))
    numbers = {name: [int(one) for one in getattr(arguments, name).split(",")] for name in ("clients", "rows")}
    cells = []
    for rows in numbers["rows"]:
        bodies = [_body(exported, rows, seed) for seed in range(8)]
        for clients in numbers["clients"]:
            cells.append(measure(arguments.address, folder.name, bodies, clients, rows, arguments.seconds, arguments.bad))
            print(f"{rows} rows, {clients} clients: {cells[-1].requests:,} requests", flush=True)
    print(
        text.table(
            ["rows", "clients", "requests/s", "rows/s", "p50 ms", "p99 ms", "bad requests", "wrong answers"], [_row(cell) for cell in cells]
        )
    )
    alone = _alone(exported)
    for rows in numbers["rows"]:
        seconds = alone(rows)
        print(f"model.predict of {rows} rows in this process: {1000 * seconds:.1f} ms, {rows / seconds:,.0f} rows/s")


def _row(cell: Cell) -> list[Any]:
    rate = cell.requests / cell.seconds
    quantiles = [text.Number(1000 * float(np.quantile(cell.latencies, part)), 1) for part in (0.5, 0.99)]
    return [cell.rows, cell.clients, text.Number(rate, 0), text.Number(rate * cell.rows, 0), *quantiles, cell.bad, cell.errors]


def measure(address: str, name: str, bodies: Sequence[bytes], clients: int, rows: int, seconds: float, bad: float) -> Cell:
    """Send requests from all clients at once, for `seconds`."""
    lock, latencies, counts = threading.Lock(), list[float](), {"bad": 0, "errors": 0}
    start, place = threading.Barrier(clients + 1), urllib.parse.urlsplit(address)
    end = [0.0]

    def ask(number: int) -> None:
        random_ = random.Random(number)
        connection = http.client.HTTPConnection(str(place.hostname), place.port or 80, timeout=120)
        try:
            for _ in range(max(1, WARM_UP // clients)):
                _post(connection, name, bodies[0])
        except OSError:
            start.abort()
        start.wait()
        mine, wrong, errors = list[float](), 0, 0
        while time.perf_counter() < end[0]:
            spoiled = random_.random() < bad
            begun = time.perf_counter()
            status = _post(connection, name, random_.choice(BAD if spoiled else bodies))
            if spoiled:
                wrong += 1
            else:
                mine.append(time.perf_counter() - begun)
            errors += not (400 <= status < 500 if spoiled else status == 200)
        connection.close()
        with lock:
            latencies.extend(mine)
            counts["bad"] += wrong
            counts["errors"] += errors

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    end[0] = time.perf_counter() + 3600
    try:
        start.wait()
    except threading.BrokenBarrierError:
        sys.exit(f"{address} does not answer: ansible-playbook serve.yml -e run={name}")
    begun = time.perf_counter()
    end[0] = begun + seconds
    for thread in threads:
        thread.join()
    return Cell(clients, rows, len(latencies), counts["bad"], counts["errors"], time.perf_counter() - begun, np.array(latencies))


def _post(connection: http.client.HTTPConnection, name: str, body: bytes) -> int:
    connection.request("POST", f"/v1/models/{name}:predict", body)
    response = connection.getresponse()
    response.read()
    return response.status


def _body(exported: ExportedModel, rows: int, seed: int) -> bytes:
    generator = np.random.default_rng(seed)
    if exported.image_size:
        return json.dumps({"instances": [{"b64": _png(generator, exported.image_size)} for _ in range(rows)]}).encode()
    return json.dumps({"instances": [_example(exported, generator) for _ in range(rows)]}).encode()


def _example(exported: ExportedModel, generator: np.random.Generator) -> Any:
    row = {leaf.name: _value(leaf, generator) for leaf in exported.inputs}
    return row if len(row) > 1 else next(iter(row.values()))


def _value(leaf: Leaf, generator: np.random.Generator) -> Any:
    shape = tuple(side or 16 for side in leaf.shape)
    if leaf.dtype == STRING:
        return np.full(shape, "word").tolist()
    if leaf.dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool).tolist()
    return generator.uniform(size=shape).tolist() if leaf.dtype.startswith("float") else generator.integers(0, 2, shape).tolist()


def _png(generator: np.random.Generator, size: Sequence[int]) -> str:
    pixels, stream = generator.integers(0, 255, tuple(size), dtype=np.uint8), io.BytesIO()
    Image.fromarray(pixels if size[2] > 1 else pixels[..., 0]).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


def _alone(exported: ExportedModel) -> Callable[[int], float]:
    """A function from a number of rows to the median seconds that Keras' own `predict` of the snapshot takes for them."""
    import keras

    from control.runs.predict.trained_model import Trained

    trained = Trained.of(project.RUNS / exported.run)
    model, spec = trained.snapshot(exported.epoch).model, trained.spec

    def seconds(rows: int) -> float:
        body = _body(exported, rows, 0)
        arrays = protocol.request_of("predict", body, exported).arrays
        (x,) = spec.inputs.pack([keras.ops.convert_to_tensor(arrays[leaf.name]) for leaf in exported.inputs])
        return statistics.median(script.in_turn({"predict": lambda: model.predict(x, verbose=0, batch_size=BLOCK)}, CALLS)["predict"])

    return seconds


if __name__ == "__main__":
    main()
