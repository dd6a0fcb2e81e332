"""Ports for tests: below the kernel's range, in which one may be taken at any time; each lane of tests has its own."""

import itertools
import os
import random
import socket

LANE = 10_000 + 2_000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
"""The first of a lane's 2,000 ports: `worker_ports` has 1,500 of them, `free_ports` the rest."""
SHARED = 500
_turns = itertools.count(random.randrange(SHARED))


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; each call gives others."""
    candidates = (LANE + 1_500 + turn % SHARED for turn in _turns)
    return list(itertools.islice(filter(_is_free, candidates), count))


def worker_ports(count: int) -> list[int]:
    """Servers' ports are 500 higher than workers', direct ones 1,000."""
    while True:
        first = LANE + random.randrange(450)
        ports = [first + 10 * number for number in range(count)]
        if all(_is_free(port + more) for port in ports for more in (0, 500, 1_000)):
            return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
