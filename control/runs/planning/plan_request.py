"""A user's request for a plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Request:
    """A user's request to `train.yml`."""

    options: dict[str, Any]
    """Operator variables as typed (strings)."""
    hosts: list[dict[str, Any]]
    """Workers of the inventory, in order: name, address, port."""
    default_workers: int
    runs: Path
    packs: Path
    parameter_cache: Path
    write: bool
    """False with `--check`: nothing is written except what was found of a dataset's images: their index, and which can't be read."""
    spares: Sequence[dict[str, Any]] = ()
    """Workers of the inventory that train only in the place of another."""
    servers: Sequence[str] = ()
    """Names of those that keep the weights of an asynchronous run."""
    apart: Sequence[dict[str, Any]] = ()
    """Workers of the inventory that only do that, or only evaluate, with their `role`."""

    @classmethod
    def parsed(cls, request: dict[str, Any]) -> "Request":
        """From JSON, in which paths are text."""
        return cls(**request | {key: Path(request[key]) for key in ("runs", "packs", "parameter_cache")})
