"""Ports for workers on this machine with `worker_port: auto`: two runs at the same time need different ones."""

import contextlib
import fcntl
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from control.common import project
from control.runs.hosts.inventory_hosts import DIRECT, SERVER
from trainer.common.files import read_json, write_json
from trainer.host import claims
from trainer.host.claims import session_name
from trainer.host.ports import taken
from trainer.rundir.launch_record import Host

RANGE = range(20000, 30000)
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
RESERVED_S = 900.0
"""Seconds for which other commands leave a chosen port alone, until its worker listens."""
RESERVED = project.PRIVATE / "ports.json"


def choose(hosts: Sequence[Host], run: str = "", before: Sequence[Host] = (), reserve: bool = False) -> list[Host]:
    """The hosts, with a free port for each host with an automatic port.

    Args:
        hosts: from `cluster_hosts`; their ports may be chosen already.
        run: name of the run that gets the ports.
        before: hosts of the run's last launch: a living worker keeps its port.
        reserve: keep other commands from choosing the same ports.
    """
    if not any(host.port_chosen for host in hosts):
        return list(hosts)
    previous = {host.name: host.port for host in before if host.port_chosen}
    with _locked() if reserve else contextlib.nullcontext():
        others = {port for port, one in _reserved().items() if one["run"] != run or not run}
        used = {port for host in hosts if not host.port_chosen for port in host.ports}
        chosen_hosts = []
        for rank, host in enumerate(hosts):
            if host.port_chosen:
                port = _kept(previous.get(host.name), others, session_name(run, rank)) or _free(others | used)
                server = None if host.server_port is None else port + SERVER
                chosen_hosts.append(replace(host, port=port, direct_port=port + DIRECT, server_port=server))
                used |= set(chosen_hosts[-1].ports)
            else:
                chosen_hosts.append(host)
        if reserve:
            _reserve([host.port for host in chosen_hosts if host.port_chosen], run)
    return chosen_hosts


def _kept(port: int | None, others: set[int], session: str) -> int | None:
    """The previous port, if it is free or the run's own worker holds it."""
    if port is None or port in others:
        return None
    return port if _is_free(port) or any(name.startswith(f"{session}-") for name in claims.sessions()) else None


def _free(not_these: set[int]) -> int:
    low, high = _ephemeral()
    # Groups do not overlap: first ports are in the lower half of an even thousand, the others in its upper half and the odd thousand above.
    lower = [port for port in RANGE if port // DIRECT % 2 == 0 and port % DIRECT < SERVER]
    firsts = [port for port in lower if not any(low <= one <= high for one in _group(port))]
    secrets.SystemRandom().shuffle(firsts)
    return next(port for port in firsts if not not_these & _group(port) and _is_free(port))


def _group(port: int) -> set[int]:
    """All ports of a worker and of a parameter server beside it."""
    return {port, port + SERVER, port + DIRECT}


def _is_free(port: int) -> bool:
    return all(taken(one) is None for one in _group(port))


def _ephemeral() -> tuple[int, int]:
    """Ports that the kernel assigns to outgoing connections: any of them may be taken at any moment."""
    try:
        low, high = EPHEMERAL.read_text(encoding="ascii").split()
    except OSError:
        return 32768, 60999
    return int(low), int(high)


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    RESERVED.parent.mkdir(parents=True, exist_ok=True)
    with RESERVED.with_suffix(".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _reserved() -> dict[int, dict[str, Any]]:
    stored = read_json(RESERVED) if RESERVED.is_file() else {}
    return {int(port): one for port, one in stored.items() if 0 <= time.time() - one["at"] < RESERVED_S}


def _reserve(ports: list[int], run: str) -> None:
    reserved = _reserved() | {port: {"run": run, "at": time.time()} for port in ports}
    write_json(RESERVED, {str(port): one for port, one in reserved.items()})
