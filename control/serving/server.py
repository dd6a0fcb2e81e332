"""The process that serves a model, until a signal ends it: `python -m control serve`."""

import ipaddress
import os
from pathlib import Path

import uvicorn

from control.serving.app import LOOPBACK, application
from control.serving.versions import Model, tensorflow_loader

BACKLOG, IDLE_S, AT_ONCE = 128, 15, 256
"""Connections that wait to be taken; seconds until an idle one is closed; requests that are answered at once."""
LINGER_S = 10
"""Seconds that requests under way have when the server stops."""


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
        backlog=BACKLOG,
        timeout_keep_alive=IDLE_S,
        limit_concurrency=AT_ONCE,
        timeout_graceful_shutdown=LINGER_S,
        access_log=bool(os.environ.get("LOCKSTEP_ACCESS_LOG")),
        server_header=False,
    )
