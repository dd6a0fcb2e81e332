"""Rows of the chaos benchmark: what each fault did, read from the records that the workers left; and the seeded schedule."""

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.chaos.faults import CHIEF, FAULTS
from control.campaign import store
from trainer.rundir.phases import Phase

FIRST = 60
"""Steps before the first fault."""
STEPS_PER_CALL, CHECKPOINT_EVERY = 4, 20
STAGES = {"meet": Phase.STARTING, "start": Phase.BUILDING, "build": Phase.RESTORING, "restore": Phase.TRAINING, "first call": "steps"}
"""Parts of a restart after it was noticed, by name: the phase or record with which each ends."""


@dataclass(frozen=True)
class Injection:
    """A fault of a schedule."""

    round: int
    number: int
    fault: str
    host: str
    due: int
    """The step at which it happens."""


@dataclass(frozen=True)
class Row:
    """Effects of one fault."""

    round: int
    number: int
    fault: str
    host: str
    due: int
    began: float
    """Seconds since 1970."""
    ended: float
    """When the fault was over."""
    notice_s: float | None
    """From the fault until the first supervisor acted; None if none had to."""
    next_step_s: float | None
    """From the fault to the next training step; without a restart, the longest time between two steps. None: no step followed."""
    repeated: int
    """Steps trained again."""
    meet_s: float | None
    start_s: float | None
    build_s: float | None
    restore_s: float | None
    first_call_s: float | None
    equal: bool | None
    """True if the final weights are those of the undisturbed training; None while the training goes on."""
    state: str
    """Final state of the run."""

    @property
    def trial(self) -> Injection:
        """The fault."""
        return Injection(self.round, self.number, self.fault, self.host, self.due)

    @property
    def measured(self) -> bool:
        """True if the training has ended."""
        return self.equal is not None


STORE = store.Store(Row)


def schedule(names: Sequence[str], hosts: Sequence[str], number: int, seed: int, spacing: int) -> list[Injection]:
    """The faults of a round, `spacing` steps apart, in random order, each on a host drawn at random among those that it is for."""
    generator = random.Random(f"{seed}/{number}")
    drawn = generator.sample(list(names), len(names))
    victims = [hosts[0] if FAULTS[name][1] == CHIEF else generator.choice(hosts[1:]) for name in drawn]
    pairs = enumerate(zip(drawn, victims, strict=True))
    return [Injection(number, place, name, host, FIRST + spacing * place) for place, (name, host) in pairs]


def _rejoins(record: Mapping[str, Any]) -> bool:
    return bool(record["kind"] == "phase" and record["phase"] == Phase.REJOINING)


def _restart(records: Iterable[dict[str, Any]], noticed: float) -> tuple[dict[str, float], dict[str, Any] | None]:
    """Seconds of each part of the restart, from the chief's records since then, and the record of the first step after it.

    Of several starts the one that brought a step counts, and what was before belongs to `meet`.
    """
    ends: dict[str, float] = {}
    first = None
    for record in records:
        name = str(record["phase"]) if record["kind"] == "phase" else str(record["kind"])
        if name == STAGES["meet"]:
            ends = {}
        ends.setdefault(name, record["t"])
        if name == "steps" and STAGES["meet"] in ends:
            first = record
            break
    stages, since = {}, noticed
    for stage, end in STAGES.items():
        if end not in ends:
            break
        stages[stage], since = ends[end] - since, ends[end]
    return stages, first


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


@dataclass(frozen=True)
class Begun:
    """A fault that has happened; times in seconds since 1970."""

    injection: Injection
    began: float
    ended: float
    """When it was over."""

    def row(self, until: float, workers: Mapping[str, Sequence[dict[str, Any]]], chief: str) -> Row:
        """Effects of the fault; the end of its training is still unknown.

        Args:
            until: when the next one began, in seconds since 1970.
            workers: records of metrics.jsonl by host.
            chief: the host whose records have the steps.
        """
        mine = {host: [one for one in records if self.began <= one["t"] < until] for host, records in workers.items()}
        steps = [one for one in workers[chief] if one["kind"] == "steps"]
        noticed = min((one["t"] for records in mine.values() for one in records if _rejoins(one)), default=None)
        if noticed is None:
            times = [one["t"] for one in steps if one["t"] < until]
            gaps = [after - max(first, self.began) for first, after in itertools.pairwise(times) if after > self.began]
            return self._row(None, max(gaps, default=None), 0, {})
        before = max((one["step"] for one in steps if one["t"] < noticed), default=0)
        stages, again = _restart([one for one in mine[chief] if one["t"] >= noticed], noticed)
        if again is None:
            return self._row(noticed - self.began, None, 0, stages)
        return self._row(noticed - self.began, again["t"] - self.began, max(0, before - again["step"] + STEPS_PER_CALL), stages)

    def _row(self, notice: float | None, following: float | None, repeated: int, stages: Mapping[str, float]) -> Row:
        parts = {f"{stage.replace(' ', '_')}_s": _rounded(stages.get(stage)) for stage in STAGES}
        times = {"began": round(self.began, 3), "ended": round(self.ended, 3), "repeated": repeated}
        seconds = {"notice_s": _rounded(notice), "next_step_s": _rounded(following), **parts}
        return Row(**asdict(self.injection), **times, **seconds, equal=None, state="RUNNING")  # type: ignore[arg-type]
