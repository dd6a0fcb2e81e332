"""The process that serves a model, until a signal ends it: `python -m control serve`."""

import asyncio
import contextlib
import ipaddress
import json
import os
import resource
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from control.serving.app import LOOPBACK, MOST_BYTES, application
from trainer.common import limits
from trainer.common.safe_text import printable

BACKLOG, IDLE_S, CONNECTIONS = 128, 15, 512
"""Connections that wait to be taken; seconds until an idle one is closed; connections at once."""
TAKE_S, STALLED_S = 60, 15
"""Seconds in which a client must have taken an answer, and in which it must take some of it."""
SMALLEST_PART, PARTS = 256, 256
"""Bytes of a body's chunks on average, once there have been some: each costs as much as a kilobyte."""
READ_BYTES = 64 * 1024
"""Read at once from a connection, so that others have their turns."""
LINGER_S = 10
"""Seconds that requests under way have when the server stops."""
SHOWN = 120
"""Characters of h11's words on a request."""
FILES = 4096
"""Open files of this process: connections are some."""


class Parts(h11.Connection):
    """HTTP without bodies in tiny parts."""

    _parts = _bytes = 0
    why = ""
    """Why a request is none."""

    def next_event(self) -> Any:
        """See `h11.Connection`."""
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.why = printable(str(error), SHOWN)
            raise
        if isinstance(event, h11.Request):
            self._parts = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._parts, self._bytes = self._parts + event.chunk_start, self._bytes + len(event.data)
            if self._parts > PARTS and self._bytes < SMALLEST_PART * (self._parts - 1):
                self.why = f"its body comes in chunks of less than {SMALLEST_PART} bytes on average; send larger ones"
                raise h11.RemoteProtocolError(self.why)
        return event


class Prompt(H11Protocol):
    """Ends a connection on which nothing moves, where uvicorn would wait for any time: no whole head comes, or no answer is taken."""

    _silent: asyncio.TimerHandle | None = None
    """Runs while the head of a request is awaited."""
    _stuck: asyncio.TimerHandle | None = None
    """Runs while the client takes nothing of an answer."""
    _taking_since: float | None = None
    """When the client first did not take an answer at once."""
    _unread = 0
    """Bytes that came after the answer to their request."""

    def __init__(self, *args: Any, **more: Any):
        """See `H11Protocol`."""
        super().__init__(*args, **more)
        self.conn = Parts(h11.SERVER)
        self._since = self.loop.time()

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        transport.max_size = READ_BYTES
        with contextlib.suppress(OSError):
            # Of what the kernel still holds after this server has closed the connection.
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_S * 1000)
        self._watch()
        if len(self.connections) > CONNECTIONS:
            self._make_room()

    def _make_room(self) -> None:
        """End the connection that has hindered longest: a new one may be a health check."""
        others = [one for one in self.connections if isinstance(one, Prompt) and one is not self and one.hinders() is not None]
        min(others, key=lambda one: one.hinders() or (0, 0.0), default=self).transport.abort()

    def hinders(self) -> tuple[int, float] | None:
        """Stage that the client stalls, and since when: 0 head of a request, 1 its body, 2 sending of its answer; None: no stage."""
        if self.cycle is None or self.cycle.response_complete:
            return 0, self._since
        if self.cycle.more_body:
            return 1, self._since
        return (2, self._since) if self._stuck is not None else None

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        self._watch()
        if self.cycle is not None and self.cycle.response_complete and self.conn.their_state is h11.SEND_BODY:
            # What is left of a refused body is read for a while: a client that still sends would not see the refusal.
            self._unread += len(data)
            if self._unread > MOST_BYTES:
                self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        super().connection_lost(exc)
        self._stop()
        self._end_stuck()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().pause_writing()
        now = self.loop.time()
        self._taking_since = self._taking_since or now
        left = min(STALLED_S, TAKE_S - (now - self._taking_since))
        self._stuck = self.loop.call_later(max(0, left), self.transport.abort)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().resume_writing()
        self._end_stuck()

    def on_response_complete(self) -> None:
        """See `H11Protocol`. What is left in the buffers must be taken, too."""
        self._since, self._taking_since, self._unread = self.loop.time(), None, 0
        if self.transport.is_closing():
            self._end_stuck()
            self._stuck = self.loop.call_later(STALLED_S, self.transport.abort)
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """See `H11Protocol`."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """See `H11Protocol`. In the form of all other errors."""
        body = json.dumps({"error": f"no valid HTTP request: {self.conn.why}" if isinstance(self.conn, Parts) else msg}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        for event in (h11.Response(status_code=400, headers=headers, reason=b"Bad Request"), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self._end_stuck()
        self._stuck = self.loop.call_later(STALLED_S, self.transport.abort)

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._silent is None:
            self._silent = self.loop.call_later(IDLE_S, self.transport.abort)

    def _stop(self) -> None:
        if self._silent is not None:
            self._silent.cancel()
        self._silent = None

    def _end_stuck(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
        self._stuck = None


def serve(folder: Path, address: str, port: int, memory: int, seconds: int) -> None:
    """Serve the newest version of a model.

    Args:
        folder: of the model's versions.
        address: to listen on.
        port: likewise.
        memory: GiB that requests may take.
        seconds: in which a request must be answered.
    """
    limits.allow(resource.RLIMIT_NOFILE, FILES)
    own = ipaddress.ip_address(address).is_loopback
    uvicorn.run(
        application(
            folder.name,
            _engine_command(folder, memory * 2**30),
            seconds,
            [*LOOPBACK, f"[{address}]" if ":" in address else address] if own else ["*"],
        ),
        host=address,
        port=port,
        http=Prompt,
        backlog=BACKLOG,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=LINGER_S,
        access_log=bool(os.environ.get("LOCKSTEP_ACCESS_LOG")),
        server_header=False,
    )


def _engine_command(folder: Path, memory: int) -> Callable[[int], Sequence[str]]:
    """Argv of the engine for the file descriptor of its channel; `memory` in bytes."""
    argv = [sys.executable, "-m", "control", "serve-engine", "--folder", str(folder), "--memory", str(memory), "--channel"]
    return lambda channel: [*argv, str(channel)]
