"""Model of a step of n workers: each host's own step with its reduction, the exchange of the sums, and the network.

All hosts compute at once and wait for the slowest, and nothing overlaps: bulk-synchronous steps (Valiant, A bridging model for parallel
computation, CACM 33, 1990) and Hockney's cost of a message. A short training shows by how much real steps differ. Pure arithmetic.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from trainer.common.errors import LockstepError
from trainer.network.sockets_all_reduce import ONE_HOP
from trainer.reduction.cost_model import DIRECT, worth_compressing

UNCOMPRESSED, COMPRESSED = "packed", "powersgd"
"""Methods among which `auto` chooses."""


@dataclass(frozen=True)
class Traffic:
    """Data that each of n workers sends in an all-reduce; it receives as much."""

    hops: int = 0
    """Number of successive messages: each can only be sent when the previous one has arrived."""
    messages: int = 0
    bytes: float = 0.0

    def __add__(self, other: "Traffic") -> "Traffic":
        """The traffic of both, one after the other."""
        return Traffic(self.hops + other.hops, self.messages + other.messages, self.bytes + other.bytes)


def _traffic(transport: str, size: int, workers: int) -> Traffic:
    """Traffic of one all-reduce of `size` bytes per worker.

    `tensorflow`: a ring, 2 (n - 1) hops of size / n (Patarasuk, Yuan, JPDC 69, 2009). `direct`: every worker sends each other worker the
    part that this one sums, then its own sum to all: 2 hops, as many bytes as the ring. Small data are sent whole, in 1 hop.
    """
    others = workers - 1
    if not others:
        return Traffic()
    if transport == DIRECT and size * others <= ONE_HOP:
        return Traffic(1, others, float(size * others))
    return Traffic(2 if transport == DIRECT else 2 * others, 2 * others, 2 * others / workers * size)


def step_traffic(transport: str, sums: Sequence[int], workers: int) -> Traffic:
    """The traffic of all sums of a step, whose sizes are in bytes."""
    return sum((_traffic(transport, size, workers) for size in sums), Traffic())


@dataclass(frozen=True)
class Prediction:
    """The prediction for one number of workers."""

    workers: int
    method: str
    """Method of sending gradients, a value of `reduction.name`; empty for one worker."""
    compute_s: float
    """Seconds of the slowest host's own computing per step, compression included."""
    exchange_s: float
    """Seconds that the slowest host's processor needs to send, receive and add up; 0 if not measured."""
    wire_s: float
    """Seconds that a step's bytes take on the slowest link."""
    latency_s: float
    """Seconds of message latency."""
    waiting_s: float
    """Seconds by which a step of the short training exceeded the other terms, for this many workers; 0 if unknown or negative."""
    step_s: float
    """Seconds per step: the sum of the terms above."""
    images_per_s: float
    efficiency: float
    """images/s relative to the same hosts without a network, 0 to 1."""


@dataclass(frozen=True)
class Trial:
    """A short training of all hosts."""

    method: str
    """Method that `reduction.name` resolved to."""
    step_s: float
    """Seconds per step."""


@dataclass(frozen=True)
class Hosts:
    """Hosts that train together, and their measurements."""

    names: list[str]
    """Names in the order of the inventory."""
    timed: Mapping[str, Mapping[str, Any]]
    """Results of `trainer steptime`, by name; a host without one counts with the median of the others."""
    network: Mapping[str, Any]
    """Results of `network_probe`, by name."""

    def first(self, workers: int) -> "Hosts":
        """The first hosts, as many as `workers`."""
        return replace(self, names=self.names[:workers])

    def alone(self) -> list[float]:
        """Seconds of each host's step with nothing to send."""
        return self._each({name: answer["step_seconds"] for name, answer in self.timed.items()})

    def computing(self, method: str) -> float:
        """Seconds of the slowest host's step with this method, if sums returned at once."""
        return max(self._each({name: answer["methods"][method]["step_seconds"] for name, answer in self.timed.items()}))

    def exchanging(self, method: str) -> float:
        """Seconds of the slowest host's processor time for exchanging the sums of a step."""
        return max(self._each({name: self._exchange(answer["methods"][method]) for name, answer in self.timed.items()}))

    def methods(self) -> list[str]:
        """Methods that all hosts have timed."""
        answers = list(self.timed.values())
        return [name for name in answers[0]["methods"] if all(name in answer["methods"] for answer in answers)]

    def sending(self, method: str) -> tuple[float, float]:
        """Seconds of a step's sums on the wire, and seconds of latency; LockstepError if no bandwidth was measured."""
        first = next(iter(self.timed.values()))
        carried = step_traffic(first["transport"], first["methods"][method]["sums"], len(self.names))
        pairs = list(combinations(self.names, 2)) if first["transport"] == DIRECT else ring(self.names)
        mbit_s = slowest(pairs, self.network)
        if not mbit_s:
            raise LockstepError(f"no prediction: no bandwidth was measured between the {len(self.names)} hosts; run the doctor again")
        return carried.bytes * 8e-6 / mbit_s, carried.hops * (_longest(pairs, self.network) or 0.0) / 1000 / 2

    def _each(self, values: Mapping[str, float]) -> list[float]:
        usual = statistics.median(values.values())
        return [values.get(name, usual) for name in self.names]

    def _exchange(self, timed: Mapping[str, Any]) -> float:
        seconds = sorted((int(workers), one) for workers, one in timed["exchange_seconds"].items())
        return float(np.interp(len(self.names), [workers for workers, _ in seconds], [one for _, one in seconds])) if seconds else 0.0


def curve(hosts: Hosts, images: float, trial: Trial | None = None) -> list[Prediction]:
    """Predictions for one to all hosts, each with `images` per step; LockstepError for several hosts without a measured bandwidth.

    All use the trial's method. If the trial's step took longer than predicted, the difference is waiting: for the last of n equal hosts,
    and for a processor that they may share. It counts in full for all hosts, and for fewer in proportion to 1 - 1/n, the part of a sum
    that comes from other hosts. If the step took less time, sending overlaps with other work, and counts as that much shorter.
    """
    every = len(hosts.names)
    shown = trial if trial and every > 1 and trial.method in hosts.methods() else None
    predictions = [_step(hosts.first(workers), images, shown.method if shown else "") for workers in range(1, every + 1)]
    if shown is None:
        return predictions
    waiting = (shown.step_s - predictions[-1].step_s) / (1 - 1 / every)
    return [predictions[0], *(_waiting(one, waiting * (1 - 1 / one.workers)) for one in predictions[1:])]


def _step(hosts: Hosts, images: float, method: str = "") -> Prediction:
    """Prediction of a step of these hosts; without a `method`, with one worker's or the one that `reduction.name: auto` would choose."""
    alone, workers = hosts.alone(), len(hosts.names)
    if workers == 1:
        return _made(Prediction(1, "", alone[0], 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0), images, alone)
    name = method or _chosen(hosts)
    wire, latency = hosts.sending(name)
    return _made(Prediction(workers, name, hosts.computing(name), hosts.exchanging(name), wire, latency, 0.0, 0.0, 0.0, 0.0), images, alone)


def _chosen(hosts: Hosts) -> str:
    names = hosts.methods()
    if not names:
        raise LockstepError("no prediction: the hosts timed no common way to send gradients; run the doctor again")
    if not {UNCOMPRESSED, COMPRESSED} <= set(names):
        return names[0]
    return (
        COMPRESSED
        if worth_compressing(max(hosts.alone()), hosts.exchanging(UNCOMPRESSED) + sum(hosts.sending(UNCOMPRESSED)))
        else UNCOMPRESSED
    )


def _made(one: Prediction, images: float, alone: Sequence[float]) -> Prediction:
    """The prediction, completed with its step's time and the efficiency."""
    seconds = one.compute_s + one.exchange_s + one.wire_s + one.latency_s + one.waiting_s
    rate = one.workers * images / seconds
    return replace(one, step_s=seconds, images_per_s=rate, efficiency=rate / sum(images / seconds_alone for seconds_alone in alone))


def _waiting(one: Prediction, seconds: float) -> Prediction:
    """Add seconds of waiting. Negative seconds shorten exchange, wire and latency instead; a step takes at least its computing time."""
    sending = one.step_s - one.compute_s
    seconds = max(seconds, -sending)
    faster, shorter = one.step_s / (one.step_s + seconds), 1 + min(seconds, 0.0) / sending if sending else 1.0
    return replace(
        one,
        exchange_s=one.exchange_s * shorter,
        wire_s=one.wire_s * shorter,
        latency_s=one.latency_s * shorter,
        waiting_s=max(seconds, 0.0),
        step_s=one.step_s + seconds,
        images_per_s=one.images_per_s * faster,
        efficiency=one.efficiency * faster,
    )


Pairs = Sequence[tuple[str, str]]


def slowest(pairs: Pairs, network: Mapping[str, Any]) -> float | None:
    """Mbit/s of the slowest link between these pairs, measured one by one and, if available, with all hosts sending at once."""
    values = []
    for host, other in pairs:
        # With fewer hosts than in the simultaneous measurement, a shared switch is less busy, but a host's own port is as busy.
        at_once = network.get(host, {}).get("ring") or {}
        values += [_pair(network, host, other).get("mbit_s"), at_once.get("mbit_s") if at_once.get("to") == other else None]
    return min(filter(None, values), default=None)


def _longest(pairs: Pairs, network: Mapping[str, Any]) -> float | None:
    """Longest round trip between these pairs, milliseconds."""
    delays = [_pair(network, host, other).get("rtt_ms") for host, other in pairs]
    return max((delay for delay in delays if delay is not None), default=None)


def _pair(network: Mapping[str, Any], host: str, other: str) -> dict[str, Any]:
    pair: dict[str, Any] = network.get(host, {}).get("pairs", {}).get(other, {})
    return pair


def ring(hosts: list[str]) -> list[tuple[str, str]]:
    """Pairs of each host with the next one, and of the last with the first; none for one host."""
    return list(zip(hosts, [*hosts[1:], hosts[0]], strict=True)) if len(hosts) > 1 else []
