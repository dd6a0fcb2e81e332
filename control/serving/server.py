"""The process that serves a model, until a signal ends it: `python -m control serve`."""

import asyncio
import ipaddress
import os
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from control.serving.app import LOOPBACK, application
from control.serving.versions import Model, tensorflow_loader

BACKLOG, IDLE_S, AT_ONCE = 128, 15, 256
"""Connections that wait to be taken; seconds until an idle one is closed; requests that are answered at once."""
LINGER_S = 10
"""Seconds that requests under way have when the server stops."""


class Prompt(H11Protocol):
    """Ends a connection on which no whole request's head comes in time: uvicorn would wait for ever, and each counts as one of AT_ONCE."""

    _silent: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        super().connection_lost(exc)
        self._stop()

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._silent is None:
            self._silent = self.loop.call_later(IDLE_S, self.transport.abort)

    def _stop(self) -> None:
        if self._silent is not None:
            self._silent.cancel()
        self._silent = None


def serve(folder: Path, address: str, port: int) -> None:
    """Serve the newest version of a model.

    Args:
        folder: of the model's versions.
        address: to listen on.
        port: likewise.
    """
    own = ipaddress.ip_address(address).is_loopback
    model = Model(folder, tensorflow_loader)
    print(model.renew() or f"there is no version in {folder}", flush=True)
    uvicorn.run(
        application(model, [*LOOPBACK, f"[{address}]" if ":" in address else address] if own else ["*"]),
        host=address,
        port=port,
        http=Prompt,
        backlog=BACKLOG,
        timeout_keep_alive=IDLE_S,
        limit_concurrency=AT_ONCE,
        timeout_graceful_shutdown=LINGER_S,
        access_log=bool(os.environ.get("LOCKSTEP_ACCESS_LOG")),
        server_header=False,
    )
