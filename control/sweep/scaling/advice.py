"""Advice on the number of workers, with its figures, from a sweep's trials and the model fitted to them. Pure functions."""

import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from scipy.special import stdtrit

from control.campaign.timings import Timing, Trial
from control.common.text import count, listed
from control.sweep.scaling.fitting import ENOUGH_FOR_ODD, PARAMETERS, RESAMPLES, WORTH, Fit, Refused, Work, again, fit, worth
from trainer.common.errors import LockstepError

CERTAIN = 0.8
"""Smallest share of resamples with which an answer is certain enough."""


@dataclass(frozen=True)
class Extras:
    """Facts known besides the timings; None if unknown."""

    mbit_s: float | None = None
    """Measured bandwidth of the slowest link (10^6 bits per second)."""
    watts_per_node: float | None = None
    """Watts of a host during training."""
    joules: Mapping[Trial, float] | None = None
    """Metered energy of all hosts over whole trials, start-up included."""
    split: Mapping[int, Mapping[str, Mapping[str, float]]] | None = None
    """Number of workers -> host -> phase of a step -> milliseconds."""
    one_machine: bool = False
    """True if the hosts are workers on one machine: they have no network between them, and none is slower than the others."""


@dataclass(frozen=True)
class Gain:
    """Gain from the last of N workers."""

    workers: int
    share: float
    """Additional images/s, as a share of the rate without this worker; negative: the worker slows training down."""
    low: float
    high: float
    """Ends of the 95% interval."""
    measured: bool
    """True if this number of workers was measured, False if the gain is derived from the model."""


@dataclass(frozen=True)
class Advice:
    """Advised number of workers, and the reasons."""

    workers: int
    fewest: int
    most: int
    """Smallest and largest measured numbers; no number beyond them is advised."""
    speedup: float
    """Speed of `workers` relative to that of `fewest`."""
    speedup_low: float
    speedup_high: float
    share_of_resamples: dict[int, float]
    """Share of resampled measurements that give each answer, most frequent first."""
    gains: tuple[Gain, ...]
    """Gains of each number of workers from one more than `fewest` to one more than `most`."""
    communication_share: float
    """Share of a step at `most` workers, 0 to 1."""
    communication_low: float
    communication_high: float

    @property
    def own_share(self) -> float:
        """Share of resampled measurements that give this answer."""
        return self.share_of_resamples.get(self.workers, 0.0)

    @property
    def doubtful(self) -> bool:
        """True if resampled measurements give other answers more often than `CERTAIN` allows."""
        return self.own_share < CERTAIN


@dataclass(frozen=True)
class Study:
    """One group of trials (same scaling, epochs, checkpoint_every) and the conclusions from it."""

    work: Work
    rows: tuple[Timing, ...]
    """Successful trials, by workers and repeat."""
    fit: Fit | None = field(compare=False)
    refusal: str
    """Reason why there is no fit; empty if there is one."""
    advice: Advice | None
    command: str = ""
    """Command that would measure enough for an answer, if there is no answer and a command can help."""

    @classmethod
    def of_rows(
        cls,
        rows: Sequence[Timing],
        work: Work,
        sweep: str = "",
        own: Mapping[int, float] | None = None,
        quick: Collection[int] = (),
        hosts: Sequence[str] = (),
        timed: bool = False,
    ) -> "Study":
        """Fit and advice for one group, or the reason why there is none; arguments as for `fitting.fit`."""
        measured = tuple(sorted((row for row in rows if row.measured), key=lambda row: row.trial))
        try:
            fitted = fit(rows, work, sweep, own, quick, hosts, timed)
        except Refused as refusal:
            return cls(work, measured, None, str(refusal), None, refusal.command)
        answered = cls(work, measured, fitted, "", _advise(fitted))
        if against := answered._contradiction():
            more = again(measured, sweep, max(row.repeat for row in measured) + 2)
            return replace(answered, advice=None, refusal=f"{against} Measure more often: {more}", command=more)
        return answered

    @property
    def counts(self) -> tuple[int, ...]:
        """The measured numbers of workers, ascending."""
        return tuple(sorted({row.workers for row in self.rows}))

    def of(self, workers: int) -> list[Timing]:
        """Trials with this number of workers."""
        return [row for row in self.rows if row.workers == workers]

    def _medians(self) -> dict[int, float]:
        """Median images/s by number of workers."""
        return {n: statistics.median(_values(self.of(n), "images_per_s")) for n in self.counts}

    def medians_in_words(self) -> str:
        """Text on the medians, as `median images/s by workers: 1: 805, 2: 697`."""
        return f"median {self.work.rate} by workers: {', '.join(f'{n}: {rate:,.0f}' for n, rate in self._medians().items())}"

    def quickest(self) -> int:
        """The number of workers with the largest median images/s."""
        rates = self._medians()
        return max(rates, key=lambda n: rates[n])

    def faster(self, workers: int) -> float:
        """Ratio of the quickest number's median images/s to that of `workers`."""
        rates = self._medians()
        return rates[self.quickest()] / rates[workers]

    def contradicted(self, workers: int) -> bool:
        """Return whether medians contradict an answer from medians alone: another number is faster by more than a worker's required gain.

        A model separates the second worker's cost from noise; medians do not.
        """
        return self.faster(workers) >= 1 + WORTH

    def _contradiction(self) -> str:
        """Sentence on how the medians contradict the model's answer; empty if they do not.

        They do if another number is faster by more than one worker's required gain, and a number between the two is slower than both: from
        few numbers, the model can't distinguish an outlier from the cost of working together.
        """
        advised, rates, best_rate = self.advice, self._medians(), self.quickest()
        if not advised or advised.workers not in rates or len(rates) >= ENOUGH_FOR_ODD or not self.contradicted(advised.workers):
            return ""
        between = range(*sorted((advised.workers, best_rate)))
        slow = [n for n in rates if n in between and rates[n] < rates[advised.workers]]
        if not slow:
            return ""
        return (
            f"no number of workers is clearly best: {count(best_rate, 'worker')} are {self.faster(advised.workers):.2f} times as fast as "
            f"{advised.workers}, and {listed(slow)} are slower ({self.medians_in_words()})."
        )

    def by_medians(self) -> int:
        """The answer of `_best` from the measured medians alone, among the measured numbers."""
        return _best(self._medians())

    def to_train(self) -> int:
        """Number of workers for a training: the model's answer, else the medians' answer, else the quickest number."""
        if self.advice:
            return self.advice.workers
        by_rule = self.by_medians()
        return self.quickest() if self.contradicted(by_rule) else by_rule

    def joined(self, workers: int) -> str:
        """Names, joined by commas, of the hosts that this number of workers adds to the previous measured number."""
        before = [n for n in self.counts if n < workers]
        earlier_hosts = set(self.of(before[-1])[0].hosts.split()) if before else set()
        rows = self.of(workers)
        return ", ".join(name for name in rows[0].hosts.split() if name not in earlier_hosts) if rows else ""

    def measured(self) -> list[dict[str, Any]]:
        """Trials, seconds, images/s, and speedup and efficiency relative to the fewest workers (by medians), by number of workers."""
        table: list[dict[str, Any]] = []
        for n in self.counts:
            rows = self.of(n)
            spreads = {name: _spread(_values(rows, name)) for name in ("seconds_end_to_end", "seconds_training", "images_per_s")}
            first = table[0]["images_per_s"]["median"] if table else spreads["images_per_s"]["median"]
            faster, base = spreads["images_per_s"]["median"] / first, self.counts[0]
            table.append(
                {"workers": n, "trials": len(rows), **spreads, "speedup_over": base, "speedup": faster, "efficiency": faster * base / n}
            )
        return table

    def modelled(self) -> list[dict[str, Any]]:
        """T(n) and its parts in milliseconds, the measured median, and errors in percent, by number of workers; empty without a fit."""
        table = []
        for n, fitted in ((n, self.fit) for n in self.counts if self.fit):
            step = self.work.images(n) / statistics.median(_values(self.of(n), "images_per_s"))
            own, messages, sent, jump, compression = (seconds * 1000 for seconds in fitted.parts_s(n))
            table.append(
                {
                    "workers": n,
                    "measured_ms": step * 1000,
                    "model_ms": fitted.step_s(n) * 1000,
                    "own_work_ms": own,
                    "own_work_measured_ms": fitted.own[n] * 1000 if n in fitted.own else None,
                    "messages_ms": messages,
                    "bytes_ms": sent,
                    "jump_ms": jump,
                    "compression_ms": compression,
                    "error_percent": (fitted.step_s(n) / step - 1) * 100,
                    "held_out_error_percent": fitted.held_out.get(n),
                    "images_per_s": fitted.images_per_s(n),
                    "images_per_s_interval": fitted.interval("images_per_s", n),
                }
            )
        return table

    def start_up(self) -> list[dict[str, Any]]:
        """Median seconds of a trial outside training, and their share of the end-to-end time (0 to 1), by number of workers."""
        rows = []
        for n in self.counts:
            totals, training = (_values(self.of(n), f"seconds_{name}") for name in ("end_to_end", "training"))
            end_to_end = statistics.median(totals)
            other = statistics.median(total - part for total, part in zip(totals, training, strict=True))
            rows.append({"workers": n, "seconds_end_to_end": end_to_end, "seconds_other": other, "share": other / end_to_end})
        return rows

    def wire(self, mbit_s: float | None) -> list[dict[str, Any]]:
        """Seconds that a step's bytes take at 100 Mbit/s, 1 Gbit/s and the measured rate, at the most workers measured."""
        most = self.counts[-1] if self.counts else 1
        links = [(100.0, False), (1000.0, False)] + ([(mbit_s, True)] if mbit_s else [])
        return [
            {"workers": most, "mbit_s": rate, "measured": is_measured, "seconds": self.work.sent(most).bytes * 8e-6 / rate}
            for rate, is_measured in links
            if most > 1
        ]

    def energy(self, extras: Extras) -> list[dict[str, Any]]:
        """Joules per epoch of all hosts, by number of workers: metered if possible, else estimated from watts, else empty.

        Metered values cover whole trials, start-up included, divided by their epochs; the estimate covers training alone.
        """
        table = []
        for n in self.counts:
            rows, joules = self.of(n), extras.joules or {}
            used, source = [joules[row.trial] / row.epochs for row in rows if row.trial in joules], "measured by the meter"
            if not used and extras.watts_per_node is not None:
                seconds = _values(rows, "seconds_training")
                used = [extras.watts_per_node * n * one / row.epochs for row, one in zip(rows, seconds, strict=True)]
                source = "estimate from watts_per_node"
            if used:
                table.append({"workers": n, "joules_per_epoch": _spread(used), "trials": len(used), "source": source})
        return table

    def as_dict(self, extras: Extras) -> dict[str, Any]:
        """Everything about the study, for summary.json."""
        row = self.rows[0] if self.rows else None
        return {
            **asdict(self.work),
            "epochs": row.epochs if row else None,
            "checkpoint_every": row.checkpoint_every if row else None,
            "answer": asdict(self.advice) if self.advice else None,
            "refusal": self.refusal or None,
            "measured": self.measured(),
            "fit": _fit_as_dict(self.fit) if self.fit else None,
            "model": self.modelled(),
            "start_up": self.start_up(),
            "wire": self.wire(extras.mbit_s),
            "energy": self.energy(extras),
        }


def groups(timings: Sequence[Timing], works: Sequence[Work]) -> list[tuple[Work, list[Timing]]]:
    """Trials to study, for each scaling with trials: the group with the most numbers of workers, then the most trials.

    On a tie, the group that saves its state most rarely is used: saving disturbs its steps least.

    Raises:
        LockstepError: a successful trial without its seconds or images/s.
    """
    for row in timings:
        lacks = [name for name in ("seconds_end_to_end", "seconds_training", "images_per_s") if row.measured and not getattr(row, name)]
        if lacks:
            raise LockstepError(
                f"timings.csv: trial {row.repeat} of {row.workers} workers is {row.state} without {', '.join(lacks)}; "
                "remove its line to measure it anew"
            )
    chosen = {work: [row for row in timings if row.scaling == work.scaling] for work in works}
    return [(work, _main_group(rows)) for work, rows in chosen.items() if rows]


def _main_group(rows: Sequence[Timing]) -> list[Timing]:
    by_settings: dict[tuple[int, int], list[Timing]] = {}
    for row in rows:
        by_settings.setdefault((row.epochs, row.checkpoint_every), []).append(row)

    def size(key: tuple[int, int]) -> tuple[int, int, float]:
        finished = [row for row in by_settings[key] if row.measured]
        return len({row.workers for row in finished}), len(finished), _rarity(key[1])

    return by_settings[max(by_settings, key=size)]


def _rarity(checkpoint_every: int) -> float:
    """Sort key for checkpoint_every: 0, only at the end of an epoch, is the rarest."""
    return checkpoint_every or math.inf


def _advise(fitted: Fit) -> Advice:
    """The answer: `_best` among the numbers of workers from the fewest to the most measured."""
    fewest, most = fitted.counts[0], fitted.counts[-1]
    counts = range(fewest, most + 1)
    workers = _best({n: fitted.images_per_s(n) for n in counts})
    drawn = {n: fitted.draws("images_per_s", n) for n in counts}
    low, high = np.quantile(drawn[workers] / drawn[fewest], [0.025, 0.975])
    answers = Counter(_best(dict(zip(counts, rates, strict=True))) for rates in np.stack(list(drawn.values()), axis=-1).tolist())
    return Advice(
        workers,
        fewest,
        most,
        fitted.images_per_s(workers) / fitted.images_per_s(fewest),
        float(low),
        float(high),
        {n: times / RESAMPLES for n, times in sorted(answers.items(), key=lambda pair: (-pair[1], pair[0]))},
        tuple(Gain(n, fitted.gain(n), *fitted.interval("gain", n), n in fitted.counts) for n in range(fewest + 1, most + 2)),
        fitted.communication_share(most),
        *fitted.interval("communication_share", most),
    )


def _best(rates: Mapping[int, float]) -> int:
    """Best number of workers, given images/s by number of workers; the larger number on a tie.

    Workers are added as long as each raises images/s by `worth`, or several do so on (geometric) average, because the second worker may
    gain no more than the network's cost. The best number therefore has the largest quotient of images/s and the product of 1 + worth(n)
    over all added workers.
    """
    asked = [0.0, 0.0, *accumulate(math.log1p(worth(n)) for n in range(2, max(rates) + 1))]
    # Rounding must not decide about a worker that adds exactly the required share.
    return max(rates, key=lambda n: (round(math.log(rates[n]) - asked[n], 9), n))


def _values(rows: Sequence[Timing], quantity: str) -> list[float]:
    return [getattr(row, quantity) for row in rows]


def _spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, mean and standard deviation of the sample; the last is None for a single value."""
    return {
        "median": statistics.median(values),
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
    }


@dataclass(frozen=True)
class Findings:
    """All findings of a sweep over numbers of workers."""

    studies: Sequence[Study]
    timings: Sequence[Timing]
    """All rows, failed trials included."""
    extras: Extras = Extras()

    @property
    def about_saved_states(self) -> bool:
        """True if the sweep compares how often the training state is saved, and nothing else."""
        return bool(self.saved_states) and len({row.workers for row in self.timings}) == 1

    @cached_property
    def saved_states(self) -> list[dict[str, Any]]:
        """Training seconds of trials that differ only in checkpoint_every, each compared with its group's rarest."""
        by_settings: dict[tuple[str, int, int], dict[int, list[float]]] = {}
        for row in sorted(self.timings, key=lambda row: row.trial):
            if row.measured and row.seconds_training is not None:
                group = by_settings.setdefault((row.scaling, row.epochs, row.workers), {})
                group.setdefault(row.checkpoint_every, []).append(row.seconds_training)
        costs = []
        for (scaling, epochs, workers), group in by_settings.items():
            rarest, *others = sorted(group, key=_rarity, reverse=True)
            for every in (rarest, *others) if others else ():
                low, high = (None, None) if every == rarest else _difference(group[every], group[rarest])
                costs.append(
                    {
                        "scaling": scaling,
                        "epochs": epochs,
                        "workers": workers,
                        "checkpoint_every": every,
                        "trials": len(group[every]),
                        "seconds_training": _spread(group[every]),
                        "compared_with": rarest,
                        "more_percent": (statistics.fmean(group[every]) / statistics.fmean(group[rarest]) - 1) * 100,
                        "more_percent_low": low,
                        "more_percent_high": high,
                    }
                )
        return costs

    @property
    def failed(self) -> list[Timing]:
        """Trials without a measurement, in order."""
        return sorted((row for row in self.timings if not row.measured), key=lambda row: row.trial)

    def as_dict(self) -> dict[str, Any]:
        """The content of analysis.md, for summary.json."""
        return {
            "studies": [one.as_dict(self.extras) for one in self.studies],
            "checkpoints": self.saved_states,
            "split_ms": {n: {host: dict(phases) for host, phases in hosts.items()} for n, hosts in (self.extras.split or {}).items()},
            "failed": [asdict(row.trial) for row in self.failed],
        }


def _difference(values: Sequence[float], base: Sequence[float]) -> tuple[float | None, float | None]:
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


def _fit_as_dict(fitted: Fit) -> dict[str, Any]:
    return {
        **{name: getattr(fitted, name) for name in PARAMETERS},
        "odd": fitted.odd,
        "noise": fitted.noise,
        **{f"{name}_interval": fitted.interval(name, fitted.counts[-1]) for name in PARAMETERS},
        "jump_from": fitted.jump_from,
        "held_out_error_percent": fitted.held_out,
        "effective_mbit_s": fitted.effective_mbit_s,
    }
