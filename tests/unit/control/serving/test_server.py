"""Clients that send or take slowly, or hold connections, beside others. No engine."""

import contextlib
import http.client
import json
import socket

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from control.serving import app, server
from control.serving.app import Account, CountedResponse
from control.serving.refusals import Overloaded
from tests.project import await_until
from tests.unit.control.serving.conftest import Running

LARGE = 16 * 2**20
"""Bytes of an answer; the kernel takes a part of them."""


class Served(Running):
    """An application with a large answer, and a small one."""

    def __init__(self):
        self.account = Account("answers")
        routes = [
            Route("/large", lambda _: CountedResponse(self.account, bytes(LARGE), 200, None)),
            Route("/small", lambda _: PlainTextResponse("ok")),
            Route("/body", self.body, methods=["POST"]),
        ]
        super().__init__(Starlette(routes=routes))

    async def body(self, http):
        return PlainTextResponse(str(len(await http.body())))

    def connect(self, text=b"", buffer=None):
        """A connection on which something was sent."""
        made = socket.socket()
        if buffer:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        made.settimeout(60)
        made.connect(self.socket.getsockname())
        made.sendall(text)
        return made

    def small(self):
        """The small answer, by a new connection."""
        connection = http.client.HTTPConnection(*self.socket.getsockname(), timeout=60)
        connection.request("GET", "/small")
        text = connection.getresponse().read()
        connection.close()
        return text


@pytest.fixture
def served():
    one = Served()
    yield one
    one.stop()


def ask(path, more=b""):
    return b"GET %s HTTP/1.1\r\nHost: a\r\n%s\r\n" % (path, more)


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
def test_answer_nobody_takes_is_given_up(served, monkeypatch, more):
    monkeypatch.setattr(server, "STALLED_S", 0.3)
    with served.connect(ask(b"/large", more), 4096):
        await_until(lambda: served.account._bytes, 20, "the answer")
        assert served.small() == b"ok"
        await_until(lambda: not served.account._bytes and not served.server.server_state.connections, 20, "its end")


def test_answer_taken_too_slowly_is_given_up(served, monkeypatch):
    monkeypatch.setattr(server, "TAKE_S", 0)
    taken = 0
    with served.connect(ask(b"/large"), 4096) as slow, contextlib.suppress(ConnectionResetError):
        while part := slow.recv(4096):
            taken += len(part)
    assert taken < LARGE
    assert served.account._bytes == 0


def test_answer_is_whole_for_who_takes_it(served, monkeypatch):
    connection = http.client.HTTPConnection(*served.socket.getsockname(), timeout=60)
    connection.request("GET", "/large")
    assert connection.getresponse().read() == bytes(LARGE)
    assert served.account._bytes == 0
    monkeypatch.setattr(app, "MOST_BYTES_AT_ONCE", 3 * 2**20)
    served.account.add(2 * 2**20)
    served.account.check(2**20)
    with pytest.raises(Overloaded, match="2 MiB of answers are held, and at most 3 may be; try again later"):
        served.account.check(2**20 + 1)


@pytest.mark.parametrize(
    "sent",
    [b"GET /sm", b"POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1", ask(b"/small"), ask(b"/large")],
    ids=["head", "body", "idle", "answer"],
)
def test_connections_that_hinder_keep_no_newcomer_out(served, monkeypatch, sent):
    monkeypatch.setattr(server, "CONNECTIONS", 8)
    hindering = [served.connect(sent, 4096) for _ in range(8)]
    await_until(lambda: all(one.hinders() for one in [*served.server.server_state.connections]), 20, "their requests")
    for _ in range(20):
        assert served.small() == b"ok"
    assert len(served.server.server_state.connections) <= 8
    for one in hindering:
        one.close()


CHUNKED = b"POST /body HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def answer(connection):
    """Status and error."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, json.loads(response.read())["error"]


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        # Each chunk costs as much time as a kilobyte in one piece.
        (CHUNKED + b"1\r\na\r\n" * 2 * server.PARTS, "its body comes in chunks of less than 256 bytes on average; send larger ones"),
        (b"rubbish\r\n\r\n", "illegal request line"),
    ],
)
def test_what_is_no_http_is_told_so(served, sent, words):
    with served.connect(sent) as connection:
        status, error = answer(connection)
    assert (status, error[: len(words) + 23]) == (400, f"no valid HTTP request: {words}")


def test_small_chunks_are_taken(served):
    with served.connect(CHUNKED + b"100\r\n%s\r\n" % (b"a" * 256) * 2 * server.PARTS + b"0\r\n\r\n") as connection:
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert response.read() == b"%d" % (2 * 256 * server.PARTS)
