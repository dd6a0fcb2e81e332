"""The web application that answers in TensorFlow Serving's REST format, with health, metrics and a page for people."""

import asyncio
import contextlib
import html
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request as Http
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from control.serving import protocol
from control.serving.batching import LARGEST, Batcher, Overloaded
from control.serving.protocol import BadRequest
from control.serving.signature import Exported
from control.serving.versions import Model, Version
from trainer.data.spec import STRING, Leaf
from trainer.errors import LockstepError
from trainer.terminal import printable

MOST_BYTES = 32 * 1024 * 1024
"""Of a request's body."""
LARGE_BYTES = 64 * 1024
"""From here, converting takes longer than another thread does to begin."""
LOOK_S = 2.0
"""Between two looks for a newer version."""
PAGE = Path(__file__).with_name("page.html")
CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data: blob:"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""Names of a server that only this machine reaches; a web page elsewhere can't give it another."""
TYPES = {"float16": "DT_HALF", "float32": "DT_FLOAT", "float64": "DT_DOUBLE", "bool": "DT_BOOL", STRING: "DT_STRING"}
log = logging.getLogger("uvicorn.error")
Answer = Callable[[Http, Version], Awaitable[dict[str, Any]]]


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

    async def _renew(self) -> None:
        while True:
            if news := await asyncio.to_thread(self.model.renew):
                log.info("%s: %s", self.model.name, news)
            if self.model.newest:
                self.meters.version.set(self.model.newest.number)
            await asyncio.sleep(LOOK_S)

    async def predict(self, http: Http, version: Version) -> dict[str, Any]:
        """`:predict`."""
        request = await _parsed(http, protocol.predict_request, version)
        outputs = await self.batcher.submit(version.signatures[request.signature], request.arrays)
        return protocol.predict_answer(outputs, request.by_row)

    async def classify(self, http: Http, version: Version) -> dict[str, Any]:
        """`:classify`."""
        request = await _parsed(http, protocol.examples_request, version)
        return protocol.classify_answer(await self.batcher.submit(version.signatures[request.signature], request.arrays), version.exported)

    async def regress(self, http: Http, version: Version) -> dict[str, Any]:
        """`:regress`."""
        request = await _parsed(http, protocol.examples_request, version)
        return protocol.regress_answer(await self.batcher.submit(version.signatures[request.signature], request.arrays))

    async def status(self, http: Http) -> Response:
        """Which versions there are, and whether they can be loaded."""
        number = _number(http)
        shown = [_state(one, why) for one, why in self.model.states().items() if number in (None, one)]
        return JSONResponse({"model_version_status": shown}) if shown else _error(404, f"there is no version of {self.model.name}")

    async def metadata(self, http: Http) -> Response:
        """Inputs and outputs of each signature."""
        version = await asyncio.to_thread(self.model.version, _number(http))
        spec = {"name": self.model.name, "signature_name": "", "version": str(version.number)}
        definitions = {name: _definition(name, version) for name in version.exported.signatures}
        return JSONResponse({"model_spec": spec, "metadata": {"signature_def": {"signature_def": definitions}}})

    async def health(self, _: Http) -> Response:
        """200 once a version is served."""
        return PlainTextResponse("ok\n") if self.model.newest else PlainTextResponse("no version is served yet\n", 503)

    async def metrics(self, _: Http) -> Response:
        """In Prometheus' format."""
        return Response(generate_latest(self.meters.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def page(self, _: Http) -> Response:
        """A page on which a person tries the model."""
        version = await asyncio.to_thread(self.model.version, None)
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
    answer: Answer = getattr(service, method)

    async def handle(http: Http) -> Response:
        begun = time.perf_counter()
        response = await _answered(partial(_of_version, service, answer), http)
        service.meters.seconds.labels(method).observe(time.perf_counter() - begun)
        service.meters.requests.labels(method, str(response.status_code)).inc()
        return response

    return handle


async def _of_version(service: Service, answer: Answer, http: Http) -> Response:
    version = await asyncio.to_thread(service.model.version, _number(http))
    return Response(json.dumps(await answer(http, version)), media_type="application/json")


def _guarded(answer: Callable[[Http], Awaitable[Response]]) -> Callable[[Http], Awaitable[Response]]:
    async def handle(http: Http) -> Response:
        return await _answered(answer, http)

    return handle


async def _answered(answer: Callable[[Http], Awaitable[Response]], http: Http) -> Response:
    """The answer, or the error in TensorFlow Serving's form."""
    try:
        return await answer(http)
    except TooLarge as error:
        # What is left of the body is not read.
        return _error(413, str(error), {"Connection": "close"})
    except BadRequest as error:
        return _error(400, str(error))
    except LockstepError as error:
        return _error(404, str(error))
    except Overloaded as error:
        return _error(503, str(error), {"Retry-After": "1"})
    except Exception:
        log.exception("%s %s", http.method, http.url.path)
        return _error(500, "the model failed on this request; the server's log says why")


class TooLarge(BadRequest):
    """A body above the limit."""

    def __str__(self) -> str:
        """For the client."""
        return f"the body is larger than {MOST_BYTES // 2**20} MiB; send fewer rows per request (the model takes {LARGEST} at once)"


async def _parsed(http: Http, convert: Callable[[dict[str, Any], Exported], protocol.Request], version: Version) -> protocol.Request:
    """The request of a body, which is read no further than its limit; a large one, or images, are converted beside other requests."""
    body, announced = bytearray(), http.headers.get("Content-Length", "")
    if announced.isdecimal() and int(announced[:18]) > MOST_BYTES:
        raise TooLarge
    async for part in http.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise TooLarge

    def convert_body() -> protocol.Request:
        return convert(protocol.parse(bytes(body)), version.exported)

    slow = len(body) > LARGE_BYTES or version.exported.image_size
    return await asyncio.to_thread(convert_body) if slow else convert_body()


def _number(http: Http) -> int | None:
    """The version in the path, if any."""
    text = http.path_params.get("number")
    if text is not None and not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise LockstepError(f"Servable not found: version {printable(text, 40)} is no number")
    return None if text is None else int(text)


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status, headers)


async def _not_found(http: Http, _: Exception) -> Response:
    return _error(404, f"there is nothing at {printable(http.url.path, 100)}; a model is at /v1/models/NAME, its page at /")


async def _not_allowed(http: Http, _: Exception) -> Response:
    return _error(
        405, f"{printable(http.method, 20)} is not for {printable(http.url.path, 100)}; :predict, :classify and :regress take POST"
    )


def _state(number: int, why: str) -> dict[str, Any]:
    """A version's state; one that is not in memory is loaded when it is asked for."""
    error = {"error_code": "UNKNOWN" if why else "OK", "error_message": why}
    return {"version": str(number), "state": "END" if why else "AVAILABLE", "status": error}


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
