"""The web application that answers in TensorFlow Serving's REST format, with health, metrics and a page for people."""

import asyncio
import contextlib
import html
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
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
from starlette.types import Receive, Scope, Send

from control.serving.engine_process import EngineProcess
from control.serving.refusals import BadRequest, Overloaded
from trainer.common.errors import LockstepError
from trainer.common.safe_text import printable
from trainer.evaluation.predict import BLOCK

MOST_BYTES = 32 * 1024 * 1024
"""Maximum size of a request's body, bytes."""
MOST_BYTES_AT_ONCE = 256 * 1024 * 1024
"""Maximum bytes of all bodies that have not been answered, and again of all answers that have not been taken."""
FREE_BYTES = 64 * 1024
"""Bytes of each body and answer that do not count, so that large ones keep no small one out; the number of connections bounds their sum."""
READ_S, STALLED_S = 60.0, 10.0
"""Time in which a body must have come, and each part of it."""
AT_ONCE = 256
"""Requests that wait for their answers."""
PAGE = Path(__file__).with_name("page.html")
CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data: blob:"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""Names of a server that only this machine reaches; a web page elsewhere can't give it another."""
log = logging.getLogger("uvicorn.error")


class Meters:
    """Metrics for Prometheus."""

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
        self.version = Gauge("lockstep_version", "The version that is served; 0: none.", registry=self.registry)

    def note(self, news: Mapping[str, Any]) -> None:
        """Record the engine's news."""
        if "rows" in news:
            self.batches.observe(news["rows"])
            self.rows.inc(news["rows"])
        if "served" in news:
            self.version.set(news["served"])


class Account:
    """Bytes that are held, of bodies or of answers."""

    def __init__(self, what: str):
        """`what`: for the message."""
        self._what, self._bytes = what, 0

    def check(self, count: int) -> None:
        """Overloaded if `count` more bytes would be too many."""
        if self._bytes + count > MOST_BYTES_AT_ONCE:
            held = f"{self._bytes / 2**20:,.0f} MiB"
            raise Overloaded(f"{held} of {self._what} are held, and at most {MOST_BYTES_AT_ONCE // 2**20} may be; try again later")

    def add(self, count: int) -> None:
        """Hold more, or fewer."""
        self._bytes += count


class Service:
    """One model's engine, meters and accounts."""

    def __init__(self, name: str, engine: EngineProcess, meters: Meters):
        """`name`: of the model."""
        self.name, self.engine, self.meters = name, engine, meters
        self.bodies, self.answers = Account("requests"), Account("answers")
        self.waiting = 0
        """Requests that wait for the engine."""

    @contextlib.asynccontextmanager
    async def running(self, _: Starlette) -> AsyncIterator[None]:
        """Keep the engine running until the server ends."""
        task = asyncio.create_task(self.engine.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def compute(self, method: str, http: Http) -> Response:
        """`:predict`, `:classify` and `:regress`."""
        number = _number(http)
        async with self._body(http) as body:
            return self._response(*await self._asked(method, number, body))

    async def describe(self, method: str, http: Http) -> Response:
        """Answer `status` (the versions) or `metadata` (inputs and outputs of each signature)."""
        return self._response(*await self._asked(method, _number(http)))

    async def _asked(self, method: str, number: int, body: bytes | bytearray = b"") -> tuple[int, bytes]:
        if self.waiting >= AT_ONCE:
            raise Overloaded(f"{self.waiting:,} requests wait for their answers, and at most {AT_ONCE:,} may; try again later")
        self.waiting += 1
        try:
            return await self.engine.ask(method, number, body)
        finally:
            self.waiting -= 1

    def _response(self, status: int, body: bytes) -> Response:
        self.answers.check(_counted(len(body)))
        return CountedResponse(self.answers, body, status, BUSY if status == 503 else None)

    @contextlib.asynccontextmanager
    async def _body(self, http: Http) -> AsyncIterator[bytearray]:
        """A request's body, which counts until the request is answered."""
        if _announced(http) > MOST_BYTES:
            raise TooLarge
        body, parts = bytearray(), http.stream()
        counted = 0
        try:
            async with asyncio.timeout(READ_S):
                while (part := await _soon(parts)) is not None:
                    # Only what has come counts: an announcement costs nothing.
                    more = _counted(len(body) + len(part)) - counted
                    self.bodies.check(more)
                    self.bodies.add(more)
                    counted += more
                    body += part
                    if len(body) > MOST_BYTES:
                        raise TooLarge
            yield body
        finally:
            self.bodies.add(-counted)

    async def health(self, _: Http) -> Response:
        """200 while a version is served."""
        return PlainTextResponse("ok\n") if self.engine.served else PlainTextResponse("no version is served; see the server's log\n", 503)

    async def metrics(self, _: Http) -> Response:
        """In Prometheus' format."""
        return Response(generate_latest(self.meters.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def page(self, http: Http) -> Response:
        """A page to try the model."""
        status, known = await self._asked("page", _number(http))
        if status != 200:
            return self._response(status, known)
        # In a script element, only these characters could end it.
        data = known.decode().replace("<", "\\u003c").replace("&", "\\u0026")
        text = PAGE.read_text(encoding="utf-8").replace("{{ name }}", html.escape(self.name)).replace("{{ data }}", data)
        return HTMLResponse(text, headers={"Content-Security-Policy": CONTENT_POLICY, "X-Content-Type-Options": "nosniff"})


class CountedResponse(Response):
    """An answer that is sent in parts, as the client takes them, and counts until then."""

    media_type = "application/json"

    def __init__(self, account: Account, body: bytes, status: int, headers: dict[str, str] | None):
        """`account`: that in which it counts."""
        super().__init__(body, status, headers)
        self._account = account

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - Starlette's interface
        """See `Response`."""
        counted = _counted(len(self.body))
        self._account.add(counted)
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for start in range(0, len(self.body), FREE_BYTES):
                part = bytes(self.body[start : start + FREE_BYTES])
                await send({"type": "http.response.body", "body": part, "more_body": start + FREE_BYTES < len(self.body)})
        finally:
            self._account.add(-counted)


def application(name: str, command: Callable[[int], Sequence[str]], seconds: float, hosts: Sequence[str] = LOOPBACK) -> Starlette:
    """The application for a model.

    Args:
        name: of the model.
        command: argv of its engine for the file descriptor of its channel.
        seconds: in which a request must be answered.
        hosts: names by which clients may address the server; `*` is any.
    """
    meters = Meters()
    service, base = Service(name, EngineProcess(command, seconds, meters.note), meters), f"/v1/models/{name}"
    routes = [
        Route("/", partial(_answered, service.page)),
        Route("/healthz", service.health),
        *(Route(path, service.metrics) for path in ("/metrics", "/monitoring/prometheus/metrics")),
    ]
    for place in (base, f"{base}/versions/{{number}}"):
        methods = ("predict", "classify", "regress")
        routes += [Route(f"{place}:{method}", partial(_measured, service, method), methods=["POST"]) for method in methods]
        for path, method in ((f"{place}/metadata", "metadata"), (place, "status")):
            routes += [Route(path, partial(_answered, partial(service.describe, method)))]
    return Starlette(
        routes=routes,
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)],
        exception_handlers={404: _not_found, 405: _not_allowed},
        lifespan=service.running,
    )


async def _measured(service: Service, method: str, http: Http) -> Response:
    """The answer of `:method`, counted and timed."""
    begun = time.perf_counter()
    response = await _answered(partial(service.compute, method), http)
    service.meters.seconds.labels(method).observe(time.perf_counter() - begun)
    service.meters.requests.labels(method, str(response.status_code)).inc()
    return response


async def _answered(answer: Callable[[Http], Awaitable[Response]], http: Http) -> Response:
    """The answer, or the error in TensorFlow Serving's form."""
    if http.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
        return _error(403, "this server answers no pages of other sites")
    try:
        return await answer(http)
    except tuple(STATUS) as error:
        status, words, headers = next(STATUS[kind] for kind in STATUS if isinstance(error, kind))
        # A client that waits for `100 Continue` may leave the body out now, or send it all the same.
        unsure = {"Connection": "close"} if isinstance(error, TooLarge) and "Expect" in http.headers else {}
        return _error(status, words or str(error), {**headers, **unsure})
    except Exception:
        log.exception("%s %s", http.method, http.url.path)
        return _error(500, "the server failed on this request; its log says why")


class TooLarge(BadRequest):
    """A body above the limit."""

    def __str__(self) -> str:
        """For the client."""
        return f"the body is larger than {MOST_BYTES // 2**20} MiB; send fewer rows per request (the model takes {BLOCK} at once)"


BUSY = {"Retry-After": "1"}
SLOW = f"the body did not come in time: {STALLED_S:g} s for each part of it, {READ_S:g} s in all"
STATUS: dict[type[Exception], tuple[int, str, dict[str, str]]] = {
    TooLarge: (413, "", {}),
    TimeoutError: (408, SLOW, {"Connection": "close"}),
    ClientDisconnect: (400, "the connection ended before the body did", {}),
    LockstepError: (404, "", {}),
    Overloaded: (503, "", BUSY),
}
"""Status, words (empty: the error's own) and headers of an error's answer; the first kind that fits."""


async def _soon(parts: AsyncIterator[bytes]) -> bytes | None:
    async with asyncio.timeout(STALLED_S):
        return await anext(parts, None)


def _counted(size: int) -> int:
    return max(0, size - FREE_BYTES)


def _announced(http: Http) -> int:
    """Bytes that a body will have; 0 if it does not say."""
    announced = http.headers.get("Content-Length", "")
    return int(announced[:18]) if announced.isascii() and announced.isdecimal() else 0


def _number(http: Http) -> int:
    """The version in the path; 0 if there is none."""
    text = http.path_params.get("number", "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise LockstepError(f"Servable not found: version {printable(text, 40)} is not a number")
    return int(text)


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": message}, status, headers)


async def _not_found(http: Http, _: Exception) -> Response:
    return _error(404, f"there is nothing at {printable(http.url.path, 100)}; a model is at /v1/models/NAME, its page at /")


async def _not_allowed(http: Http, _: Exception) -> Response:
    return _error(
        405, f"{printable(http.method, 20)} is not for {printable(http.url.path, 100)}; :predict, :classify and :regress take POST"
    )
