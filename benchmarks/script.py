"""What the scripts of this folder share: command line, alternating rounds, local workers that train the task model."""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[1]
BATCH, SIZE, CLASSES = 64, (32, 32, 3), 10
K = TypeVar("K")


def parser(description: str | None, **numbers: int) -> argparse.ArgumentParser:
    """A command line with whole numbers, by name and default."""
    line = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in numbers.items():
        line.add_argument(f"--{name}", type=int, default=default)
    return line


def in_turn(ways: Mapping[K, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter) -> dict[K, list[float]]:
    """Seconds of each way in rounds in which all take turns, so that all see the same machine; a first round is left out."""
    seconds: dict[K, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, work in ways.items():
            begun = clock()
            work()
            seconds[name].append(clock() - begun)
    return {name: taken[1:] for name, taken in seconds.items()}


def given_to_worker(line: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line of a worker, with its `rank`; in the process without a rank, start all workers and end with them."""
    line.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    given = line.parse_args()
    if given.rank is None:
        launch(given.workers)
    return given


def launch(workers: int) -> None:
    """Run this script once per worker; the chief's output is shown."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
    processes = []
    for rank in range(workers):
        tf_config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(tf_config), "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(ROOT)}
        output = None if rank == 0 else subprocess.DEVNULL
        processes.append(subprocess.Popen([sys.executable, *sys.argv, "--rank", str(rank)], env=environment, stdout=output, stderr=output))
    sys.exit(max(process.wait() for process in processes))


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def joined(workers: int) -> Any:
    """The cluster of local workers, with this worker's share of the cores."""
    from trainer.cluster import Cluster
    from trainer.member import Member

    return Cluster(Member.from_environment(), max(1, len(os.sched_getaffinity(0)) // workers))


def prepared(cluster: Any, rank: int, steps: int, model: str = "task_cnn", reduction: str = "packed") -> tuple[Any, Any, Any]:
    """The parts of the project's own step, and the arguments of a call of `steps` steps."""
    import numpy as np

    from trainer import assembly, step
    from trainer.config import Config, Reduction

    config = Config(model={"name": model}, reduction=Reduction(name=reduction))
    cluster.connect(config.reduction.transport)
    parts, _ = assembly.assemble(assembly.build_local(cluster, config, CLASSES), config, config.reduction)
    feed = step.full(*batches(rank, steps), BATCH * cluster.member.workers)
    return parts, feed, np.full(steps, 0.01, np.float32)


def batches(rank: int, steps: int) -> tuple[Any, Any]:
    """Random images and labels `[steps, batch, ...]`."""
    import numpy as np

    rng = np.random.default_rng(rank)
    images = rng.integers(0, 256, (steps, BATCH, *SIZE), dtype=np.uint8)
    return images, rng.integers(0, CLASSES, (steps, BATCH)).astype(np.int32)
