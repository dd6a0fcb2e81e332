"""What a launch leaves on hosts of this machine, and the command lines that it starts there."""

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.ports import free_ports
from trainer.common.files import write_json
from trainer.data.manifest import Published


def addressed(hosts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Hosts with an address, and ports of their own."""
    ports = iter(free_ports(2 * len(hosts)))
    return [{**host, "address": "127.0.0.1", "port": next(ports), "direct_port": next(ports)} for host in hosts]


def supervised(hosts: Sequence[dict[str, Any]], workers: int, recovery: Mapping[str, Any], silence: float) -> dict[str, Any]:
    """What a launch's record holds for supervisors; the hosts after the first `workers` are spares."""
    listed = [{**host, "root": "", "silence": silence} for host in hosts]
    return {"launch": secrets.token_hex(16), "recovery": dict(recovery), "hosts": listed[:workers], "spares": listed[workers:]}


def command(record: Mapping[str, Any], worker: Sequence[str]) -> list[str]:
    """Arguments of a host's Python that start a worker: under a supervisor, unless a run may not start again by itself."""
    return ["-m", "trainer.supervision" if record["recovery"]["max_restarts"] else "trainer", *worker]


def write(run: Path, host: str, config: str, record: Mapping[str, Any], secret: str) -> Path:
    """Write a run directory's files on a host; gives the worker's own folder."""
    own = run / "workers" / host
    own.mkdir(parents=True, exist_ok=True)
    (run / "config.yml").write_text(config)
    write_json(run / "cluster.json", dict(record))
    (own / "secret").write_text(secret)
    return own


def reading(run: Path, host: str, place: Published, caches: Path) -> list[str]:
    """Arguments of what reads a run and its data set on a host."""
    data = ["--packs", str(place.folder), "--manifest", place.sha256, "--caches", str(caches)]
    return ["--run", str(run), "--host", host, *data]


def training(reads: Sequence[str], host: Mapping[str, Any], weights: Path | None) -> list[str]:
    """Arguments of a worker; `weights`: a file that it starts from."""
    given = ["--weights", str(weights)] if weights else []
    return ["train", *reads, *given, "--direct-port", str(host["direct_port"])]
