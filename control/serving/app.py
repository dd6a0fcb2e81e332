"""The web application that answers in TensorFlow Serving's REST format, with health, metrics and a page for people."""

import asyncio
import contextlib
import html
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Http
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from control.serving import protocol
from control.serving.batching import Batcher, Overloaded
from control.serving.protocol import Arrays, BadRequest
from control.serving.signature import Exported
from control.serving.versions import Model, Version
from trainer.data.spec import STRING, Leaf
from trainer.errors import LockstepError
from trainer.predict import BLOCK
from trainer.terminal import printable

MOST_BYTES = 32 * 1024 * 1024
"""Of a request's body."""
MOST_BYTES_AT_ONCE = 256 * 1024 * 1024
"""Of all bodies that are being read or converted."""
READ_S = 60.0
"""In which a body must have come."""
LARGE_BYTES, LARGE_VALUES = 64 * 1024, 8192
"""Of a body, and of an answer: from here, converting takes longer than another thread does to begin."""
LOOK_S = 2.0
"""Between two looks for a newer version."""
PAGE = Path(__file__).with_name("page.html")
CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data: blob:"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""Names of a server that only this machine reaches; a web page elsewhere can't give it another."""
TYPES = {"float16": "DT_HALF", "float32": "DT_FLOAT", "float64": "DT_DOUBLE", "bool": "DT_BOOL", STRING: "DT_STRING"}
log = logging.getLogger("uvicorn.error")


class Meters:
    """What Prometheus reads."""

    def __init__(self) -> None:
        """A registry of its own, as several applications may be made in a process."""
        self.registry = CollectorRegistry()
        make = partial(Counter, registry=self.registry)
        self.requests = make("lockstep_requests", "Requests, by what was asked and the answer's status.", ["method", "status"])
        self.rows = make("lockstep_rows", "Rows that were predicted.")
        buckets = tuple(0.001 * 2**power for power in range(14))
        self.seconds = Histogram(
            "lockstep_request_seconds", "From a request to its answer.", ["method"], buckets=buckets, registry=self.registry
        )
        sizes = tuple(2**power for power in range(9))
        self.batches = Histogram("lockstep_batch_rows", "Rows of a call of the model.", buckets=sizes, registry=self.registry)
        self.version = Gauge("lockstep_version", "The version that is served.", registry=self.registry)


class Service:
    """One model, its batcher and its meters."""

    def __init__(self, model: Model):
        """Nothing is loaded yet."""
        self.model, self.meters = model, Meters()
        self.batcher = Batcher(note=self._note)
        self.converting, self.loading = (
            ThreadPoolExecutor(count, thread_name_prefix=name) for count, name in ((2, "convert"), (1, "load"))
        )
        self.bytes = 0
        """Of bodies that are being read or converted."""

    def _note(self, rows: int) -> None:
        self.meters.batches.observe(rows)
        self.meters.rows.inc(rows)

    @contextlib.asynccontextmanager
    async def running(self, _: Starlette) -> AsyncIterator[None]:
        """Answer, and look for newer versions, until the server ends."""
        tasks = [asyncio.create_task(self.batcher.run()), asyncio.create_task(self._renew())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for pool in (self.converting, self.loading):
                pool.shutdown(wait=False, cancel_futures=True)

    async def _renew(self) -> None:
        while True:
            try:
                news = await self.on(self.loading, self.model.renew)
            except OSError as error:
                news = f"the folder of its versions can't be read: {error}"
            if news:
                log.info("%s: %s", self.model.name, news)
            if self.model.newest:
                self.meters.version.set(self.model.newest.number)
            await asyncio.sleep(LOOK_S)

    async def on(self, pool: ThreadPoolExecutor, work: Callable[[], Any]) -> Any:
        """What some work gives, done by another thread."""
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    async def version(self, http: Http) -> Version:
        """The version that a request names; LockstepError."""
        number, newest = _number(http), self.model.newest
        if newest is not None and number in (None, newest.number):
            return newest
        version: Version = await self.on(self.loading, partial(self.model.version, number))
        return version

    async def predict(self, http: Http) -> Response:
        """`:predict`."""
        version = await self.version(http)
        request = await self._parsed(http, protocol.predict_request, version)
        return await self._answer(version, request, partial(protocol.predict_answer, by_row=request.by_row))

    async def classify(self, http: Http) -> Response:
        """`:classify`."""
        version = await self.version(http)
        request = await self._parsed(http, protocol.examples_request, version)
        return await self._answer(version, request, partial(protocol.classify_answer, model=version.exported))

    async def regress(self, http: Http) -> Response:
        """`:regress`."""
        version = await self.version(http)
        request = await self._parsed(http, protocol.examples_request, version)
        return await self._answer(version, request, protocol.regress_answer)

    async def _answer(self, version: Version, request: protocol.Request, convert: Callable[[Arrays], dict[str, Any]]) -> Response:
        outputs = await self.batcher.submit(version.signatures[request.signature], request.arrays, request.alone)

        def encode() -> bytes:
            return json.dumps(convert(outputs)).encode()

        large = sum(output.size for output in outputs.values()) > LARGE_VALUES
        return Response(await self.on(self.converting, encode) if large else encode(), media_type="application/json")

    async def _parsed(
        self, http: Http, convert: Callable[[dict[str, Any], Exported], protocol.Request], version: Version
    ) -> protocol.Request:
        """The request of a body; a large one, or images, are converted beside other requests."""
        if _announced(http) > MOST_BYTES:
            raise TooLarge
        body = bytearray()
        try:
            async with asyncio.timeout(READ_S):
                async for part in http.stream():
                    # Only what has come counts: an announcement costs nothing.
                    self._take(len(part))
                    body += part
                    if len(body) > MOST_BYTES:
                        raise TooLarge

            def convert_body() -> protocol.Request:
                return convert(protocol.parse(body), version.exported)

            slow = len(body) > LARGE_BYTES or version.exported.image_size
            request: protocol.Request = await self.on(self.converting, convert_body) if slow else convert_body()
            return request
        finally:
            self.bytes -= len(body)

    def _take(self, count: int) -> None:
        """Count bytes of a body, unless there are too many already."""
        if self.bytes + count > MOST_BYTES_AT_ONCE:
            raise Overloaded(
                f"bodies of {self.bytes / 2**20:,.0f} MiB are being read, and at most {MOST_BYTES_AT_ONCE // 2**20} may; try again later"
            )
        self.bytes += count

    async def status(self, http: Http) -> Response:
        """Which versions there are, and whether they can be loaded."""
        number = _number(http)
        shown = [_state(one, good) for one, good in self.model.states().items() if number in (None, one)]
        return JSONResponse({"model_version_status": shown}) if shown else _error(404, f"there is no version of {self.model.name}")

    async def metadata(self, http: Http) -> Response:
        """Inputs and outputs of each signature."""
        version = await self.version(http)
        spec = {"name": self.model.name, "signature_name": "", "version": str(version.number)}
        definitions = {name: _definition(name, version) for name in version.exported.signatures}
        return JSONResponse({"model_spec": spec, "metadata": {"signature_def": {"signature_def": definitions}}})

    async def health(self, _: Http) -> Response:
        """200 once a version is served."""
        return PlainTextResponse("ok\n") if self.model.newest else PlainTextResponse("no version is served yet\n", 503)

    async def metrics(self, _: Http) -> Response:
        """In Prometheus' format."""
        return Response(generate_latest(self.meters.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def page(self, http: Http) -> Response:
        """A page to try the model."""
        version = await self.version(http)
        exported = version.exported
        known = {
            "name": self.model.name,
            "version": version.number,
            "run": exported.run,
            "epoch": exported.epoch,
            "image": exported.image_size,
            "classes": exported.classes,
            "inputs": [{"name": leaf.name, "dtype": leaf.dtype, "shape": leaf.shape} for leaf in exported.inputs],
            "outputs": [leaf.name for leaf in exported.outputs],
        }
        # In a script element, only these characters could end it.
        data = json.dumps(known).replace("<", "\\u003c").replace("&", "\\u0026")
        text = PAGE.read_text(encoding="utf-8").replace("{{ name }}", html.escape(self.model.name)).replace("{{ data }}", data)
        return HTMLResponse(text, headers={"Content-Security-Policy": CONTENT_POLICY, "X-Content-Type-Options": "nosniff"})


def application(model: Model, hosts: Sequence[str] = LOOPBACK) -> Starlette:
    """The application for a model.

    Args:
        model: whose versions are served.
        hosts: names by which clients may address the server; `*` is any.
    """
    service, base = Service(model), f"/v1/models/{model.name}"
    routes = [
        Route("/", _guarded(service.page)),
        Route("/healthz", service.health),
        *(Route(path, service.metrics) for path in ("/metrics", "/monitoring/prometheus/metrics")),
    ]
    for place in (base, f"{base}/versions/{{number}}"):
        methods = ("predict", "classify", "regress")
        routes += [Route(f"{place}:{method}", _measured(service, method), methods=["POST"]) for method in methods]
        routes += [Route(f"{place}/metadata", _guarded(service.metadata)), Route(place, _guarded(service.status))]
    return Starlette(
        routes=routes,
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)],
        exception_handlers={404: _not_found, 405: _not_allowed},
        lifespan=service.running,
    )


def _measured(service: Service, method: str) -> Callable[[Http], Awaitable[Response]]:
    """What answers `:method`: counted and timed."""
    answer: Callable[[Http], Awaitable[Response]] = getattr(service, method)

    async def handle(http: Http) -> Response:
        begun = time.perf_counter()
        response = await _answered(answer, http)
        service.meters.seconds.labels(method).observe(time.perf_counter() - begun)
        service.meters.requests.labels(method, str(response.status_code)).inc()
        return response

    return handle


def _guarded(answer: Callable[[Http], Awaitable[Response]]) -> Callable[[Http], Awaitable[Response]]:
    async def handle(http: Http) -> Response:
        return await _answered(answer, http)

    return handle


async def _answered(answer: Callable[[Http], Awaitable[Response]], http: Http) -> Response:
    """The answer, or the error in TensorFlow Serving's form."""
    if http.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
        return _error(403, "this server answers no pages of other sites")
    try:
        return await answer(http)
    except tuple(STATUS) as error:
        status, words, headers = next(STATUS[kind] for kind in STATUS if isinstance(error, kind))
        return _error(status, words or str(error), headers)
    except Exception:
        log.exception("%s %s", http.method, http.url.path)
        return _error(500, "the model failed on this request; the server's log says why")


class TooLarge(BadRequest):
    """A body above the limit."""

    def __str__(self) -> str:
        """For the client."""
        return f"the body is larger than {MOST_BYTES // 2**20} MiB; send fewer rows per request (the model takes {BLOCK} at once)"


STATUS: dict[type[Exception], tuple[int, str, dict[str, str]]] = {
    # What is left of these bodies is not read.
    TooLarge: (413, "", {"Connection": "close"}),
    TimeoutError: (408, "the body did not come in time", {"Connection": "close"}),
    ClientDisconnect: (400, "the connection ended before the body did", {}),
    BadRequest: (400, "", {}),
    LockstepError: (404, "", {}),
    Overloaded: (503, "", {"Retry-After": "1", "Connection": "close"}),
}
"""Status, words (empty: the error's own) and headers of an error's answer; the first kind that fits."""


def _announced(http: Http) -> int:
    """Bytes that a body will have; 0 if it does not say."""
    announced = http.headers.get("Content-Length", "")
    return int(announced[:18]) if announced.isascii() and announced.isdecimal() else 0


def _number(http: Http) -> int | None:
    """The version in the path, if any."""
    text = http.path_params.get("number")
    if text is not None and not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise LockstepError(f"Servable not found: version {printable(text, 40)} is not a number")
    return None if text is None else int(text)


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status, headers)


async def _not_found(http: Http, _: Exception) -> Response:
    return _error(404, f"there is nothing at {printable(http.url.path, 100)}; a model is at /v1/models/NAME, its page at /")


async def _not_allowed(http: Http, _: Exception) -> Response:
    return _error(
        405, f"{printable(http.method, 20)} is not for {printable(http.url.path, 100)}; :predict, :classify and :regress take POST"
    )


def _state(number: int, good: bool) -> dict[str, Any]:
    """A version's state; one that is not in memory is loaded when it is asked for."""
    error = {"error_code": "OK", "error_message": ""} if good else {"error_code": "UNKNOWN", "error_message": "it can't be loaded"}
    return {"version": str(number), "state": "AVAILABLE" if good else "END", "status": error}


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
