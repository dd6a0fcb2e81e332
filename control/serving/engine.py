"""The process that computes answers. It trusts no request, and nothing waits for it: the server ends it when it is stuck."""

import asyncio
import contextlib
import json
import os
import re
import resource
import socket
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from control.serving import frames, protocol
from control.serving.batching import Batcher
from control.serving.refusals import BadRequest, OutOfMemory, Overloaded
from control.serving.versions import LONGEST, OLDER, Model, Version
from trainer.common.errors import LockstepError
from trainer.common.safe_text import printable
from trainer.data.spec import STRING, Leaf

LARGE_BYTES, LARGE_VALUES = 64 * 1024, 8192
"""Size of a body, and of an answer, from which converting takes longer than another thread does to begin."""
LOOK_S = 2.0
"""Seconds between two looks at the folder of versions."""
TYPES = {"float16": "DT_HALF", "float32": "DT_FLOAT", "float64": "DT_DOUBLE", "bool": "DT_BOOL", STRING: "DT_STRING"}
MODEL_BYTES, MODEL_COPIES = 256 * 2**20, 4
"""Memory that one more version may take: `MODEL_BYTES`, and `MODEL_COPIES` times its files' size while it is loaded."""
KILLED_FIRST = "500"
"""Added to the kernel's score of this process where memory runs out: it goes before the server and before trainings."""
STATUS: dict[type[Exception], int] = {BadRequest: 400, LockstepError: 404, Overloaded: 503, OutOfMemory: 503, MemoryError: 503}
"""HTTP status of an error's answer; the first kind that fits."""
FUNCTION = re.compile(r"\{\{[^}]*\}\}")
"""Where in its graph TensorFlow was, in its words."""
Answer = tuple[int, bytes]


class Engine:
    """One model's versions and its batcher."""

    def __init__(self, model: Model, tell: Callable[[Mapping[str, Any]], None]):
        """`tell` sends news to the server, from any thread."""
        self.model, self._tell = model, tell
        self.batcher = Batcher(note=lambda rows: tell({"rows": rows}))
        self.converting, self.loading = (
            ThreadPoolExecutor(count, thread_name_prefix=name) for count, name in ((2, "convert"), (1, "load"))
        )

    async def renew(self) -> None:
        """Look at the folder of versions until cancelled."""
        while True:
            try:
                news = await _on(self.loading, self.model.renew)
            except OSError as error:
                news = f"the folder of its versions can't be read: {error}"
            served = self.model.newest.number if self.model.newest else 0
            self._tell({"served": served, **({"log": news} if news else {})})
            await asyncio.sleep(LOOK_S)

    async def answer(self, method: str, number: int, body: bytes) -> Answer:
        """Status and JSON; an error as TensorFlow Serving words it."""
        try:
            return 200, await self._answer(method, number or None, body)
        except tuple(STATUS) as error:
            status = next(STATUS[kind] for kind in STATUS if isinstance(error, kind))
            return status, _json({"error": str(error) or str(OutOfMemory())})
        except Exception as error:
            self._tell({"log": f":{method} failed\n{''.join(traceback.format_exception(error))}"})
            return 500, _json({"error": "the model failed on this request; the server's log says why"})

    async def _answer(self, method: str, number: int | None, body: bytes) -> bytes:
        if method == "status":
            return _json(self._status(number))
        version: Version = self.model.current(number) or await _on(self.loading, partial(self.model.version, number))
        if method == "metadata":
            return _json(self._metadata(version))
        return _json(self._page(version)) if method == "page" else await self._computed(method, version, body)

    async def _computed(self, method: str, version: Version, body: bytes) -> bytes:
        """The answer to `predict`, `classify` or `regress`; what may take long is converted beside other requests."""
        exported = version.exported
        quick = method == "predict" and not exported.image_size and not any(leaf.varies for leaf in exported.inputs)
        read = partial(protocol.request_of, method, body, exported)
        request: protocol.Request = read() if quick and len(body) <= LARGE_BYTES else await _on(self.converting, read)
        protocol.check_answer({leaf.name: [request.rows, *(side or 1 for side in leaf.shape)] for leaf in exported.outputs})
        outputs = await self.batcher.submit(version.signatures[request.signature], request.arrays, request.block)

        def encode() -> bytes:
            return _json(protocol.answer_of(method, outputs, exported, request.by_row))

        large = sum(output.size for output in outputs.values()) > LARGE_VALUES
        encoded: bytes = await _on(self.converting, encode) if large else encode()
        return encoded

    def _status(self, number: int | None) -> dict[str, Any]:
        shown = [_state(one, why) for one, why in self.model.states().items() if number in (None, one)]
        if not shown:
            raise LockstepError(f"there is no version of {self.model.name}")
        return {"model_version_status": shown}

    def _metadata(self, version: Version) -> dict[str, Any]:
        spec = {"name": self.model.name, "signature_name": "", "version": str(version.number)}
        definitions = {name: _definition(name, version) for name in version.exported.signatures}
        return {"model_spec": spec, "metadata": {"signature_def": {"signature_def": definitions}}}

    def _page(self, version: Version) -> dict[str, Any]:
        """Data for the page."""
        exported = version.exported
        return {
            "name": self.model.name,
            "version": version.number,
            "run": exported.run,
            "epoch": exported.epoch,
            "image": exported.image_size,
            "classes": exported.classes,
            "inputs": [{"name": leaf.name, "dtype": leaf.dtype, "shape": leaf.shape} for leaf in exported.inputs],
            "outputs": [leaf.name for leaf in exported.outputs],
        }


async def _on(pool: ThreadPoolExecutor, work: Callable[[], Any]) -> Any:
    """Result of work done by another thread. Cancelled while the work runs, this ends when the work does."""
    future = pool.submit(work)
    done = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        if not future.cancel():
            await asyncio.wait([done])
        raise


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _state(number: int, why: str) -> dict[str, Any]:
    """A version's state; one that is not in memory is loaded when it is asked for."""
    status = {"error_code": "UNKNOWN" if why else "OK", "error_message": why}
    return {"version": str(number), "state": "END" if why else "AVAILABLE", "status": status}


def _definition(name: str, version: Version) -> dict[str, Any]:
    """A signature as TensorFlow Serving describes it."""
    inputs = [protocol.TEXTS[name]] if name in protocol.TEXTS else version.exported.inputs
    sides = {"inputs": inputs, "outputs": version.exported.outputs}
    return {
        **{side: {leaf.name: _tensor(leaf) for leaf in leaves} for side, leaves in sides.items()},
        "method_name": "tensorflow/serving/predict",
    }


def _tensor(leaf: Leaf) -> dict[str, Any]:
    sides = [{"size": str(-1 if side is None else side), "name": ""} for side in (None, *leaf.shape)]
    return {
        "dtype": TYPES.get(leaf.dtype, f"DT_{leaf.dtype.upper()}"),
        "tensor_shape": {"dim": sides, "unknown_rank": False},
        "name": leaf.name,
    }


def run(folder: Path, memory: int, channel: int) -> None:
    """Answer the server's requests until it closes the channel.

    Args:
        folder: of the model's versions.
        memory: bytes that requests may take, beside the model.
        channel: file descriptor of a socket to the server.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(KILLED_FIRST)
    asyncio.run(_run(Model(folder, _Limited(memory)), socket.socket(fileno=channel)))


async def _run(model: Model, channel: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=channel, limit=2**20)
    loop, tasks = asyncio.get_running_loop(), dict[int, asyncio.Task[None]]()

    def tell(news: Mapping[str, Any]) -> None:
        loop.call_soon_threadsafe(writer.write, frames.answer(frames.NEWS, 200, _json(news)))

    engine = Engine(model, tell)

    async def handle(number: int, method: str, version: int, body: bytes) -> None:
        status, data = 503, b""
        try:
            status, data = await engine.answer(method, version, body)
        finally:
            # Answered even if cancelled: the server learns that nothing runs any more.
            del tasks[number]
            writer.write(frames.answer(number, status, data))

    background = [asyncio.create_task(work) for work in (engine.batcher.run(), engine.renew())]
    for task in background:
        task.add_done_callback(lambda _: os._exit(1))
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            number, method, version, body = await frames.read_request(reader)
            if method != "cancel":
                tasks[number] = asyncio.create_task(handle(number, method, version, body))
            elif number in tasks:
                tasks[number].cancel()
    # Threads may still compute for nobody.
    os._exit(0)


class _Limited:
    """Loads versions, and bounds the memory that requests can take beside them."""

    def __init__(self, memory: int):
        """`memory`: bytes for requests."""
        self._memory, self._first, self._later = memory, 0, dict[Path, int]()

    def __call__(self, folder: Path) -> dict[str, protocol.Call]:
        """See `versions.Loader`."""
        if self._first:
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            self._later[folder] = MODEL_BYTES + MODEL_COPIES * size
            self._limit()
        signatures = _loaded(folder)
        # No request is computed before the first version is there.
        self._first = self._first or _data_bytes()
        self._limit()
        return signatures

    def _limit(self) -> None:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        # Those kept, and the one that is being loaded.
        wanted = self._first + sum(sorted(self._later.values())[-OLDER - 2 :]) + self._memory
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _data_bytes() -> int:
    """Private memory that this process may write, without stacks, as RLIMIT_DATA counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))


def _loaded(folder: Path) -> dict[str, protocol.Call]:
    """A SavedModel's signatures, from arrays to arrays. Imports TensorFlow."""
    import tensorflow as tf

    from control.serving import saved_model

    refused = (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError, tf.errors.UnimplementedError, tf.errors.FailedPreconditionError)

    def calling(signature: Any) -> protocol.Call:
        def call(arrays: protocol.Arrays) -> protocol.Arrays:
            try:
                outputs = signature(**{name: tf.constant(value) for name, value in arrays.items()})
                return {name: output.numpy() for name, output in outputs.items()}
            except refused as error:
                # A line that can't be parsed, or a number that the model's own tables do not have.
                words = FUNCTION.sub("", error.message).strip() or type(error).__name__
                raise BadRequest(printable(words.splitlines()[0], LONGEST)) from None
            except UnicodeDecodeError as error:
                # TensorFlow quotes the input in its words.
                raise BadRequest(f"the model refuses the input {printable(str(error.object, 'utf-8', 'replace'), LONGEST)}") from None
            except tf.errors.ResourceExhaustedError:
                raise OutOfMemory from None

        return call

    return {name: calling(signature) for name, signature in saved_model.load(folder).items()}
