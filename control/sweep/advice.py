"""How many workers to use, and the figures behind it, from a sweep's trials and the model fitted to them. Pure functions."""

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from scipy.special import stdtrit

from control.doctor.prediction import wire_seconds
from control.sweep.scaling import Fit, Refused, Vector, Work, fit, worth
from control.sweep.timings import Timing, Trial
from trainer.errors import LockstepError

GIGABIT, FAST = 1000.0, 100.0
"""Mbit/s of the links for which the wire time is shown."""


@dataclass(frozen=True)
class Extras:
    """Known facts besides the timings; None if unknown."""

    mbit_s: float | None = None
    """Measured bandwidth of the slowest link (10^6 bits per second)."""
    watts_per_node: float | None = None
    """Watts of a host during training."""
    joules: Mapping[Trial, float] | None = None
    """Metered energy of all hosts over whole trials, start-up included."""
    split: Mapping[int, Mapping[str, Mapping[str, float]]] | None = None
    """Number of workers -> host -> phase of a step -> milliseconds."""
    one_machine: bool = False
    """Whether the hosts are workers on one machine: there is no wire between them, and no host is slow by itself."""


@dataclass(frozen=True)
class Gain:
    """What the last of N workers brings."""

    workers: int
    share: float
    """More images/s, as a share of the rate without it; negative: it slows down."""
    low: float
    high: float
    """The 95% interval."""
    measured: bool
    """Whether this number of workers was measured, or only follows from the model."""


@dataclass(frozen=True)
class Advice:
    """How many workers to use, and why."""

    workers: int
    fewest: int
    most: int
    """The smallest and the largest number measured; no number beyond them is advised."""
    speedup: float
    """images/s of `workers` relative to those of `fewest`."""
    speedup_low: float
    speedup_high: float
    share_of_resamples: dict[int, float]
    """Share of resampled measurements that give each answer, most frequent first."""
    gains: tuple[Gain, ...]
    """From one more than `fewest` to one more than `most`."""
    communication_share: float
    """Share of a step at `most` workers, 0 to 1."""
    communication_low: float
    communication_high: float


@dataclass(frozen=True)
class Study:
    """One group of trials (same scaling, epochs, checkpoint_every) and the conclusions from it."""

    work: Work
    rows: tuple[Timing, ...]
    """Successful trials, by workers and repeat."""
    fit: Fit | None = field(compare=False)
    refusal: str
    """Why there is no fit; empty if there is one."""
    advice: Advice | None
    command: str = ""
    """The command that measures enough for an answer, if there is none and a command can."""

    @property
    def counts(self) -> tuple[int, ...]:
        """The measured numbers of workers, ascending."""
        return tuple(sorted({row.workers for row in self.rows}))

    def of(self, workers: int) -> list[Timing]:
        """Trials with this number of workers."""
        return [row for row in self.rows if row.workers == workers]


OwnWork = Callable[[Sequence[Timing]], Mapping[int, float]]
"""A step's own work from profiled steps in some trials: seconds by number of workers, as `scaling.fit` takes them."""


Quick = Callable[[Sequence[Timing]], Collection[int]]
"""Numbers of workers whose newest hosts are no slower than the others by these steps, as `scaling.fit` takes them."""


def studies(
    timings: Sequence[Timing],
    works: Sequence[Work],
    sweep: str = "",
    own: OwnWork = lambda _: {},
    quick: Quick = lambda _: (),
    hosts: Sequence[str] = (),
) -> list[Study]:
    """A study of each scaling that has trials: of the group with the most numbers of workers, then the most trials.

    On a tie, the group that saves its state most rarely counts: saving disturbs its steps least.

    Args:
        timings: all rows of a sweep.
        works: the work of a step, one for each scaling.
        sweep: its name, for the commands in messages.
        own: returns the own work in the trials of each group studied.
        quick: returns where no slow host joins in those trials.
        hosts: names and addresses in the inventory.

    Raises:
        LockstepError: a successful trial without its seconds or images/s.
    """
    _complete(timings)
    chosen = {work: [row for row in timings if row.scaling == work.scaling] for work in works}
    groups = {work: _main_group(rows) for work, rows in chosen.items() if rows}
    return [study(rows, work, sweep, own(rows), quick(rows), hosts) for work, rows in groups.items()]


def _complete(timings: Sequence[Timing]) -> None:
    for row in timings:
        lacks = [name for name in ("seconds_end_to_end", "seconds_training", "images_per_s") if row.measured and not getattr(row, name)]
        if lacks:
            raise LockstepError(
                f"timings.csv: trial {row.repeat} of {row.workers} workers is {row.state} without {', '.join(lacks)}; "
                "remove its line to measure it anew"
            )


def _main_group(rows: Sequence[Timing]) -> list[Timing]:
    groups: dict[tuple[int, int], list[Timing]] = {}
    for row in rows:
        groups.setdefault((row.epochs, row.checkpoint_every), []).append(row)

    def size(key: tuple[int, int]) -> tuple[int, int, float]:
        finished = [row for row in groups[key] if row.measured]
        return len({row.workers for row in finished}), len(finished), rarity(key[1])

    return groups[max(groups, key=size)]


def rarity(checkpoint_every: int) -> float:
    """Sort key for checkpoint_every: 0, only at the end of an epoch, is the rarest."""
    return checkpoint_every or math.inf


def study(
    rows: Sequence[Timing],
    work: Work,
    sweep: str = "",
    own: Mapping[int, float] | None = None,
    quick: Collection[int] = (),
    hosts: Sequence[str] = (),
) -> Study:
    """Fit and advice for one group, or why there is none; arguments as for `scaling.fit`."""
    measured = tuple(sorted((row for row in rows if row.measured), key=lambda row: row.trial))
    try:
        fitted = fit(rows, work, 0, sweep, own, quick, hosts)
    except Refused as refusal:
        return Study(work, measured, None, str(refusal), None, refusal.command)
    return Study(work, measured, fitted, "", advise(fitted))


def advise(fitted: Fit) -> Advice:
    """The answer: `best` among the numbers of workers from the fewest to the most measured."""
    fewest, most = fitted.counts[0], fitted.counts[-1]
    workers = best([fitted.images_per_s(n) for n in range(fewest, most + 1)], fewest)
    low, high = np.quantile(fitted.draws("images_per_s", workers) / fitted.draws("images_per_s", fewest), [0.025, 0.975])
    return Advice(
        workers,
        fewest,
        most,
        fitted.images_per_s(workers) / fitted.images_per_s(fewest),
        float(low),
        float(high),
        _shares(fitted),
        tuple(_gain(fitted, n) for n in range(fewest + 1, most + 2)),
        fitted.communication_share(most),
        *fitted.interval("communication_share", most),
    )


def best(rates: Sequence[float], fewest: int = 1) -> int:
    """The number of workers to use, from the images/s of `fewest` workers, one more, two more ...

    Workers are added as long as each brings `worth` more images/s, several together on (geometric) average: the second alone may
    only earn the network's cost. That is the number with the largest images/s divided by the product of 1 + worth(n) over all added
    workers.
    """
    return int(_best(np.array(rates), fewest))


def _best(rates: Vector, fewest: int) -> Vector:
    """The number to use along the last axis; the larger on a tie."""
    asked = np.cumsum([0.0, *(math.log1p(worth(fewest + added)) for added in range(1, rates.shape[-1]))])
    # Rounding must not decide about a worker that brings exactly the required share.
    log_ratios = np.round(np.log(rates) - asked, 9)
    last: Vector = fewest + rates.shape[-1] - 1 - np.argmax(log_ratios[..., ::-1], axis=-1)
    return last


def _shares(fitted: Fit) -> dict[int, float]:
    fewest = fitted.counts[0]
    rates = np.stack([fitted.draws("images_per_s", n) for n in range(fewest, fitted.counts[-1] + 1)], axis=-1)
    numbers, times = np.unique(_best(rates, fewest), return_counts=True)
    frequencies = sorted(zip(numbers.tolist(), times.tolist(), strict=True), key=lambda pair: -pair[1])
    return {int(number): times / len(rates) for number, times in frequencies}


def _gain(fitted: Fit, workers: int) -> Gain:
    return Gain(workers, fitted.gain(workers), *fitted.interval("gain", workers), workers in fitted.counts)


def by_medians(study: Study) -> int:
    """The number of workers by the rule of `best`, from the measured medians alone, among the measured numbers."""
    rates = {n: statistics.median(_rates(study.of(n))) for n in study.counts}
    asked = {n: math.fsum(math.log1p(worth(m)) for m in range(2, n + 1)) for n in rates}
    return max(rates, key=lambda n: (round(math.log(rates[n]) - asked[n], 9), n))


def _rates(rows: Sequence[Timing]) -> list[float]:
    return [row.images_per_s for row in rows if row.images_per_s is not None]


def joined(study: Study, workers: int) -> str:
    """Names, joined by commas, of the hosts that this number of workers adds to the previous measured number."""
    before = [n for n in study.counts if n < workers]
    earlier_hosts = set(study.of(before[-1])[0].hosts.split()) if before else set()
    rows = study.of(workers)
    return ", ".join(name for name in rows[0].hosts.split() if name not in earlier_hosts) if rows else ""


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Median, mean and standard deviation of the sample; the last is None for a single value."""
    return {
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
    }


def measured(study: Study) -> list[dict[str, Any]]:
    """By number of workers: trials, seconds, images/s, and speedup and efficiency of median images/s over the fewest measured."""
    base = study.counts[0] if study.counts else 0
    first = statistics.median(_rates(study.of(base))) if base else math.nan
    return [_measured(study.of(n), first, base) for n in study.counts]


def _measured(rows: Sequence[Timing], first: float, base: int) -> dict[str, Any]:
    workers, rate = rows[0].workers, spread(_rates(rows))
    faster = (rate["median"] or 0.0) / first
    return {
        "workers": workers,
        "trials": len(rows),
        "seconds_end_to_end": spread([row.seconds_end_to_end for row in rows if row.seconds_end_to_end is not None]),
        "seconds_training": spread([row.seconds_training for row in rows if row.seconds_training is not None]),
        "images_per_s": rate,
        "speedup_over": base,
        "speedup": faster,
        "efficiency": faster * base / workers,
    }


def modelled(study: Study) -> list[dict[str, Any]]:
    """By number of workers: T(n) and its parts in milliseconds, with the measured median; errors in percent. Empty without a fit."""
    return [_modelled(study, study.fit, n) for n in study.counts] if study.fit else []


def _modelled(study: Study, fitted: Fit, workers: int) -> dict[str, Any]:
    step = study.work.images(workers) / statistics.median(_rates(study.of(workers)))
    own, messages, sent, jump = (seconds * 1000 for seconds in fitted.parts_s(workers))
    return {
        "workers": workers,
        "measured_ms": step * 1000,
        "model_ms": fitted.step_s(workers) * 1000,
        "own_work_ms": own,
        "own_work_measured_ms": fitted.own[workers] * 1000 if workers in fitted.own else None,
        "messages_ms": messages,
        "bytes_ms": sent,
        "jump_ms": jump,
        "error_percent": (fitted.step_s(workers) / step - 1) * 100,
        "held_out_error_percent": fitted.held_out.get(workers),
        "images_per_s": fitted.images_per_s(workers),
        "images_per_s_interval": fitted.interval("images_per_s", workers),
    }


def start_up(study: Study) -> list[dict[str, Any]]:
    """By number of workers: median seconds of a trial outside training, and their share of the end-to-end time, 0 to 1."""
    rows = []
    for n in study.counts:
        both = [(row.seconds_end_to_end or 0.0, row.seconds_training or 0.0) for row in study.of(n)]
        end_to_end, other = statistics.median(total for total, _ in both), statistics.median(total - part for total, part in both)
        rows.append({"workers": n, "seconds_end_to_end": end_to_end, "seconds_other": other, "share": other / end_to_end})
    return rows


def wire(study: Study, mbit_s: float | None) -> list[dict[str, Any]]:
    """Seconds that a step's bytes take on links of a given rate, at the most workers measured; a measured rate comes last."""
    links = [(FAST, False), (GIGABIT, False)] + ([(mbit_s, True)] if mbit_s else [])
    most = study.counts[-1] if study.counts else 1
    return [
        {"workers": most, "mbit_s": rate, "measured": is_measured, "seconds": wire_seconds(most, study.work.gradient_bytes, rate)}
        for rate, is_measured in links
        if most > 1
    ]


def effective_mbit_s(fitted: Fit) -> float | None:
    """The bandwidth that equals the fit's seconds per byte (10^6 bits per second); None if bytes take less than 0.1% of a step."""
    most = fitted.counts[-1]
    return 8e-6 / fitted.s_per_byte if fitted.parts_s(most)[2] > 0.001 * fitted.step_s(most) else None


def checkpoint_costs(timings: Sequence[Timing]) -> list[dict[str, Any]]:
    """Training seconds of trials that differ only in checkpoint_every, each compared with its group's rarest."""
    groups: dict[tuple[str, int, int], dict[int, list[float]]] = {}
    for row in sorted(timings, key=lambda row: row.trial):
        if row.measured and row.seconds_training is not None:
            group = groups.setdefault((row.scaling, row.epochs, row.workers), {})
            group.setdefault(row.checkpoint_every, []).append(row.seconds_training)
    return [
        _cost(key, every, group) for key, group in groups.items() if len(group) > 1 for every in sorted(group, key=rarity, reverse=True)
    ]


def _cost(key: tuple[str, int, int], every: int, group: Mapping[int, list[float]]) -> dict[str, Any]:
    rarest = max(group, key=rarity)
    low, high = (None, None) if every == rarest else difference(group[every], group[rarest])
    return {
        **dict(zip(("scaling", "epochs", "workers"), key, strict=True)),
        "checkpoint_every": every,
        "trials": len(group[every]),
        "seconds_training": spread(group[every]),
        "compared_with": rarest,
        "more_percent": (statistics.fmean(group[every]) / statistics.fmean(group[rarest]) - 1) * 100,
        "more_percent_low": low,
        "more_percent_high": high,
    }


def difference(values: Sequence[float], base: Sequence[float]) -> tuple[float | None, float | None]:
    """95% interval (percent of the base's mean) of the difference of two means; (None, None) if one has a single value.

    Welch, The generalization of Student's problem when several different population variances are involved, Biometrika 34, 1947.
    """
    if min(len(values), len(base)) < 2:
        return None, None
    parts = [statistics.variance(some) / len(some) for some in (values, base)]
    off, mean = statistics.fmean(values) - statistics.fmean(base), statistics.fmean(base)
    if not sum(parts):
        return off / mean * 100, off / mean * 100
    freedom = sum(parts) ** 2 / sum(part**2 / (len(some) - 1) for part, some in zip(parts, (values, base), strict=True))
    half = float(stdtrit(freedom, 0.975)) * math.sqrt(sum(parts))
    return (off - half) / mean * 100, (off + half) / mean * 100


def energy(study: Study, extras: Extras) -> list[dict[str, Any]]:
    """Joules per epoch of all hosts by number of workers: metered if possible, else estimated from watts; else empty.

    Metered values cover whole trials, start-up included, divided by their epochs; the estimate covers training alone.
    """
    rows = [_energy(study.of(n), extras) for n in study.counts]
    return [row for row in rows if row is not None]


def _energy(rows: Sequence[Timing], extras: Extras) -> dict[str, Any] | None:
    workers = rows[0].workers
    metered = [extras.joules[row.trial] / row.epochs for row in rows if extras.joules and row.trial in extras.joules]
    if metered:
        return {"workers": workers, "joules_per_epoch": spread(metered), "trials": len(metered), "source": "measured by the meter"}
    if extras.watts_per_node is None:
        return None
    used = [extras.watts_per_node * workers * row.seconds_training / row.epochs for row in rows if row.seconds_training is not None]
    return {"workers": workers, "joules_per_epoch": spread(used), "trials": len(used), "source": "estimate from watts_per_node"}


def failed(timings: Sequence[Timing]) -> list[Timing]:
    """Trials without a measurement, in order."""
    return sorted((row for row in timings if not row.measured), key=lambda row: row.trial)


def as_dict(studies: Sequence[Study], timings: Sequence[Timing], extras: Extras) -> dict[str, Any]:
    """The content of analysis.md, for summary.json."""
    return {
        "studies": [_study_as_dict(one, extras) for one in studies],
        "checkpoints": checkpoint_costs(timings),
        "split_ms": {n: {host: dict(phases) for host, phases in hosts.items()} for n, hosts in (extras.split or {}).items()},
        "failed": [asdict(row.trial) for row in failed(timings)],
    }


def _study_as_dict(one: Study, extras: Extras) -> dict[str, Any]:
    row = one.rows[0] if one.rows else None
    return {
        **asdict(one.work),
        "epochs": row.epochs if row else None,
        "checkpoint_every": row.checkpoint_every if row else None,
        "answer": asdict(one.advice) if one.advice else None,
        "refusal": one.refusal or None,
        "measured": measured(one),
        "fit": _fit_as_dict(one.fit) if one.fit else None,
        "model": modelled(one),
        "start_up": start_up(one),
        "wire": wire(one, extras.mbit_s),
        "energy": energy(one, extras),
    }


def _fit_as_dict(fitted: Fit) -> dict[str, Any]:
    parameters = ("compute_s", "latency_s", "s_per_byte", "jump_s")
    return {
        **{name: getattr(fitted, name) for name in parameters},
        "odd": fitted.odd,
        "noise": fitted.noise,
        **{f"{name}_interval": fitted.interval(name, fitted.counts[-1]) for name in parameters},
        "jump_from": fitted.jump_from,
        "held_out_error_percent": fitted.held_out,
        "effective_mbit_s": effective_mbit_s(fitted),
    }
