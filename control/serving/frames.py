"""Messages between the server and its engine, over a socket: a head of fixed size, then the bytes that it announces."""

import asyncio
import struct

METHODS = ("cancel", "predict", "classify", "regress", "status", "metadata", "page")
"""Methods of requests, by their number in a head. `cancel` names another request, and is the only one without an answer of its own."""
NEWS = 0
"""Number of an answer that nobody asked for: an object with `served`, `log` or `rows`."""
_REQUEST, _ANSWER = struct.Struct(">IBII"), struct.Struct(">IHI")


def request(number: int, method: str, version: int, body: bytes | bytearray) -> bytes:
    """A request; `version` 0 is the newest."""
    return _REQUEST.pack(number, METHODS.index(method), version, len(body)) + body


async def read_request(reader: asyncio.StreamReader) -> tuple[int, str, int, bytes]:
    """Number, method, version and body; IncompleteReadError at the end."""
    number, method, version, length = _REQUEST.unpack(await reader.readexactly(_REQUEST.size))
    return number, METHODS[method], version, await reader.readexactly(length)


def answer(number: int, status: int, body: bytes) -> bytes:
    """An answer, with an HTTP status."""
    return _ANSWER.pack(number, status, len(body)) + body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """Number, status and body; IncompleteReadError at the end."""
    number, status, length = _ANSWER.unpack(await reader.readexactly(_ANSWER.size))
    return number, status, await reader.readexactly(length)
