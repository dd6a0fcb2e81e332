"""Predicted speed of a cluster, from one host's step, the bytes of a step and the measured network; compared with what a training measures.

Gradients are summed by a ring all-reduce, which moves the fewest bytes possible: Patarasuk and Yuan, Bandwidth optimal
all-reduce algorithms for clusters of workstations, JPDC 69 (2009).
"""

import datetime
import hashlib
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from control import project, text
from control.runs import cluster
from trainer.errors import LockstepError
from trainer.files import read_json, write_json
from trainer.reduction.cost_model import TENSORFLOW, traffic

FOLDER = project.PRIVATE / "predictions"


@dataclass(frozen=True)
class Prediction:
    """The prediction for one number of workers."""

    workers: int
    compute_s: float
    """Seconds of the slowest host's own work per step."""
    wire_s: float
    """Seconds that a step's bytes take on the slowest link."""
    latency_s: float
    """Seconds of message latency."""
    handling_s: float
    """Seconds to compress, pack, copy and add what is sent; 0 if not measured."""
    step_s: float
    """Seconds per step: the sum of these."""
    images_per_s: float
    efficiency: float
    """images/s relative to the same hosts without a network, 0 to 1."""


def bytes_per_step(parameters: int) -> int:
    """Bytes of gradients that each host contributes per step, uncompressed."""
    return parameters * 4


def wire_bytes(workers: int, gradient_bytes: int) -> float:
    """Bytes that each host sends (and receives) in a ring all-reduce of `gradient_bytes`: 2 (n - 1) / n of them."""
    return traffic(TENSORFLOW, gradient_bytes, workers).bytes


def wire_seconds(workers: int, gradient_bytes: int, mbit_s: float) -> float:
    """Seconds of one all-reduce at the bandwidth of the slowest link (Mbit/s, 10^6 bits); 0 for one worker."""
    return wire_bytes(workers, gradient_bytes) * 8e-6 / mbit_s if workers > 1 else 0.0


def handling(step_seconds: float, bare: Prediction, gradient_bytes: int) -> float:
    """Seconds per byte to handle what is sent, from a measured step and its `bare` prediction without handling; never below 0."""
    sent = wire_bytes(bare.workers, gradient_bytes)
    return max(0.0, step_seconds - bare.step_s) / sent if sent else 0.0


def step(
    compute: list[float], images: float, gradient_bytes: int, mbit_s: float | None, rtt_ms: float | None, s_per_byte: float = 0.0
) -> Prediction:
    """The step of hosts that work in parallel and wait for the slowest; LockstepError for several hosts without a bandwidth.

    Nothing overlaps: an implementation that overlaps communication and computing is faster than this.

    Args:
        compute: seconds of each host's own work per step.
        images: images per host and step.
        gradient_bytes: bytes that each host contributes to the sum: `bytes_per_step`, or less with compression.
        mbit_s: bandwidth of the slowest link in use; may be None for one host.
        rtt_ms: longest round trip between neighbours; None counts as 0.
        s_per_byte: result of `handling`.
    """
    workers = len(compute)
    if workers > 1 and not mbit_s:
        raise LockstepError(f"no prediction: no bandwidth was measured between the {workers} hosts; run the doctor again")
    wire = wire_seconds(workers, gradient_bytes, mbit_s or 1.0)
    # 2 (n - 1) messages, each half a round trip.
    latency = 2 * (workers - 1) * (rtt_ms or 0.0) / 1000 / 2
    handled = wire_bytes(workers, gradient_bytes) * s_per_byte
    seconds = max(compute) + wire + latency + handled
    ideal = sum(images / alone for alone in compute)
    rate = workers * images / seconds
    return Prediction(workers, max(compute), wire, latency, handled, seconds, rate, rate / ideal)


def curve(
    hosts: list[str], compute: dict[str, float], images: float, gradient_bytes: int, network: dict[str, Any], s_per_byte: float = 0.0
) -> list[Prediction]:
    """Predictions for 1 to all workers, in the order of the inventory.

    Args as in `step`, but `compute` is by name, where a host that was not measured gets the median of the others; and `network`:
    results of `network_probe` by host.
    """
    usual = statistics.median(compute.values())
    seconds = [compute.get(name, usual) for name in hosts]
    return [
        step(seconds[:workers], images, gradient_bytes, slowest(hosts[:workers], network), longest(hosts[:workers], network), s_per_byte)
        for workers in range(1, len(hosts) + 1)
    ]


def slowest(hosts: list[str], network: dict[str, Any]) -> float | None:
    """Mbit/s of a ring's slowest link: measured with all sending at once, if between these hosts; otherwise one by one."""
    values = []
    for host, neighbour in ring(hosts):
        # With fewer hosts than in the simultaneous measurement a shared switch is less busy, but a host's own port is not.
        at_once = network.get(host, {}).get("ring") or {}
        values += [_pair(network, host, neighbour).get("mbit_s"), at_once.get("mbit_s") if at_once.get("to") == neighbour else None]
    return min(filter(None, values), default=None)


def longest(hosts: list[str], network: dict[str, Any]) -> float | None:
    """Longest round trip (milliseconds) between neighbours of a ring."""
    delays = [_pair(network, host, neighbour).get("rtt_ms") for host, neighbour in ring(hosts)]
    return max((delay for delay in delays if delay is not None), default=None)


def _pair(network: dict[str, Any], host: str, other: str) -> dict[str, Any]:
    pair: dict[str, Any] = network.get(host, {}).get("pairs", {}).get(other, {})
    return pair


def ring(hosts: list[str]) -> list[tuple[str, str]]:
    """Each host with the next, the last with the first; none for one host."""
    return list(zip(hosts, [*hosts[1:], hosts[0]], strict=True)) if len(hosts) > 1 else []


def table(predictions: list[Prediction]) -> str:
    """One row per number of workers; times in milliseconds."""
    header = ["workers", "compute ms", "wire ms", "delay ms", "handling ms", "step ms", "images/s", "of ideal"]
    rows = [
        [
            one.workers,
            *(text.Number(seconds * 1000, 1) for seconds in (one.compute_s, one.wire_s, one.latency_s, one.handling_s, one.step_s)),
            text.Number(one.images_per_s, 0),
            Percent(one.efficiency),
        ]
        for one in predictions
    ]
    return text.table(header, rows)


class Percent(float):
    """A share as a percentage in a table."""

    def __str__(self) -> str:
        """Without decimals."""
        return f"{float(self):.0%}"


def _path(config: dict[str, Any], batch: int) -> Path:
    """The file for a model, its input, its reduction and the images per worker and step."""
    key = {"model": config["model"], "size": config["data"]["image_size"], "reduction": config["reduction"], "batch": batch}
    return FOLDER / f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]}.json"


def local_batch(counts: dict[str, Any]) -> int:
    """Images per worker and step, rounded down."""
    return max(1, int(counts["global_batch"]) // int(counts["workers"]))


def save(plan: dict[str, Any], predictions: list[Prediction], facts: dict[str, Any], threads: dict[str, int]) -> None:
    """Write a prediction for the plan's hosts, 1 to all, with what it was made with.

    Args:
        plan: the doctor's.
        predictions: results of `curve`.
        facts: of `host_probe`, by host.
        threads: with which each host's own step was timed, by host.
    """
    names, batch = [host["name"] for host in plan["hosts"]], local_batch(plan["counts"])
    value = {
        "made_at": datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        "hosts": [cluster.label(host) for host in plan["hosts"]],
        "made_with": [[threads.get(name), facts.get(name, {}).get("cpus"), batch] for name in names],
        "predictions": [asdict(one) for one in predictions],
    }
    write_json(_path(plan["config"], batch), value)


def expected(config: dict[str, Any], record: dict[str, Any], shares: list[int] | None = None) -> float | None:
    """Images/s that the doctor predicted for a run, None without a prediction for these hosts as they were in that run.

    A host with other threads or another share of its processor, or one that takes other images of a step, is not what was predicted.

    Args:
        config: the run's config.yml.
        record: its cluster.json.
        shares: each worker's share of a step (`shares` of its summary.json); None: all alike.
    """
    file = _path(config, local_batch(record["counts"]))
    if not file.is_file():
        return None
    forecast, names = read_json(file), [cluster.label(host) for host in record["hosts"]]
    batch = local_batch(record["counts"])
    # A node wrote the shares: they may be of another number of workers, or all 0.
    sizes = [round(record["counts"]["global_batch"] * share / max(1, sum(shares))) for share in shares] if shares else [batch] * len(names)
    if len(sizes) != len(names):
        return None
    now = [[host.get("threads"), host.get("cpus"), size] for host, size in zip(record["hosts"], sizes, strict=True)]
    if forecast["hosts"][: len(names)] != names or forecast.get("made_with", [])[: len(names)] != now:
        return None
    return float(forecast["predictions"][len(names) - 1]["images_per_s"])


def sentence(predicted: float, measured: float) -> str:
    """Printed after training; both in images/s, from 0."""
    if measured <= 0:
        return f"{predicted:,.0f} images/s by the doctor, measured 0"
    percent = (predicted / measured - 1) * 100
    error = f"{abs(percent):.0f}% too {'high' if percent > 0 else 'low'}" if abs(percent) >= 1 else "correct within 1%"
    return f"{predicted:,.0f} images/s by the doctor, measured {measured:,.0f}: {error}"
