"""Model of a step's time by number of workers, fitted to a sweep's trials, with its uncertainty. Pure functions.

Seconds of a step of n workers, each of which sends m(n) messages with s(n) bytes:

    weak scaling      T(n) = c + d       + k + m(n) a + s(n) b
    strong scaling    T(n) = (c + d) / n + k + m(n) a + s(n) b

c: own work; a: per message; b: per byte, as in Hockney's model; m and s: of the all-reduce in use (`cost_model`); k: compression, for
several workers that compress; d: a jump, 0 unless the measurements show one.
`advice_text` explains their meaning, the fit and the sources to users. Strong scaling has no constant part of own work: 1/n, (n - 1)/n
and a constant can't be separated, because any two of them make the third. A jump from 2 workers on is the fixed cost of working
together and is not divided by n. Own work of profiled steps is observed in addition to T(n), so c is also known without trials of 1
worker, and can be separated from k.
"""

import functools
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import fdtrc

from control.campaign.timings import STRONG, WEAK, Timing
from control.common.host_names import on_one_machine
from control.common.text import count, listed
from control.runs.results.step_model import Traffic, step_traffic
from trainer.common.errors import LockstepError
from trainer.reduction.cost_model import TENSORFLOW

Vector = NDArray[np.float64]

RESAMPLES = 1000
FEWEST_COUNTS = 3
"""Fewest different numbers of workers: one per parameter of the model."""
WITH_JUMP = 4
"""Number of parameters of the model with a jump."""
ENOUGH_FOR_ODD = FEWEST_COUNTS + 2
"""Fewest numbers of workers among which an outlier can be detected: with fewer, the rest fits perfectly whichever is left out."""
FEWEST_REPEATS = 2
WIDEST = 0.30
"""Widest 95% interval that allows a conclusion, as a share of images/s at a measured number of workers."""
WORTH, WORTH_OF_IDEAL = 0.10, 0.5
"""Shares for `worth`, which is the smaller one: absolute, and relative to the ideal gain."""
JUMP = 0.10
"""Smallest jump of a step's time that the model includes, as a share of a step's own work."""
JUMP_CHANCE = 0.05
"""Largest probability that noise alone looks like the jump (F test, divided by the number of jumps tried)."""
MOST_REPEATS = 10
"""Most repeats that a message requests at once; it may always request 2 more than exist."""
ODD, ODD_NOISE = 0.10, 3.0
"""Deviation of a median step from the curve, as a share and as a multiple of the repeats' noise; an outlier exceeds both."""
LEAST_WORK_S = 1e-6
"""Lower limit of a step's own work, so that images/s stay finite."""
PARAMETERS = ("compute_s", "latency_s", "s_per_byte", "jump_s", "compression_s")


def worth(workers: int) -> float:
    """Share by which the last of N workers must raise images/s to be worth adding; N is at least 2.

    10%, or half of the ideal 1 / (n - 1) with many workers.
    """
    return min(WORTH, WORTH_OF_IDEAL / (workers - 1))


class Refused(LockstepError):
    """Error if nothing can be concluded: the value, the rule, and the sweep command that fixes it, if any."""

    def __init__(self, message: str, command: str = "") -> None:
        super().__init__(message + command)
        self.command = command


@dataclass(frozen=True)
class Work:
    """The work of a step."""

    scaling: str
    """`timings.WEAK` or `timings.STRONG`."""
    batch: int
    """Examples per step, of one worker (weak) or of all workers (strong)."""
    gradient_bytes: int
    """Bytes of gradients that each worker contributes per step, as sent."""
    train_images: int = 0
    """Examples per epoch, of which the last step takes the rest; 0: unknown, all steps count as full."""
    transport: str = TENSORFLOW
    """Transport of the gradients: see `reduction.transport`."""
    sums: tuple[int, ...] = ()
    """Bytes of each all-reduce of a step; empty: one all-reduce of all gradients."""
    compressed: bool = False
    """True if several workers compress their gradients; one worker does not."""
    called: str = "image"
    """Noun for an example."""

    @property
    def rate(self) -> str:
        """Unit of speed, as `images/s`."""
        return f"{self.called}s/s"

    def images(self, workers: int) -> float:
        """Mean images per step over an epoch, so that division by images/s gives the mean seconds of a step."""
        full = self.batch * workers if self.scaling == WEAK else self.batch
        return self.train_images / math.ceil(self.train_images / full) if self.train_images else float(full)

    def sent(self, workers: int) -> Traffic:
        """Traffic that each worker sends in a step."""
        return step_traffic(self.transport, self.sums or (self.gradient_bytes,), workers)

    def terms(self, workers: int, jump_from: int | None = None) -> Vector:
        """Factors of c, a, b, d and k in T(n)."""
        own, sent = 1.0 if self.scaling == WEAK else 1 / workers, self.sent(workers)
        jump = 0.0 if jump_from is None or workers < jump_from else own if jump_from > 2 else 1.0
        return np.array([own, sent.messages, sent.bytes, jump, float(self.compressed and workers > 1)])

    def own_terms(self, workers: int, jump_from: int | None = None) -> Vector:
        """Factors of c, a, b, d and k in a step's own work, which includes d of a slow host, but not d of working together."""
        return self.terms(workers, jump_from) * np.array([1.0, 0.0, 0.0, 0.0 if jump_from == 2 else 1.0, 1.0])


@dataclass(frozen=True)
class Model:
    """T(n) with its parameters, for any number of workers from 1, measured or not.

    The parameters are one set, or many (rows of `values`): each method returns a number, or one per set.
    """

    work: Work
    jump_from: int | None
    """The number of workers from which a step takes `jump_s` longer; None if the measurements show no jump."""
    values: Vector = field(repr=False, compare=False)
    """c, a, b, d, k: `PARAMETERS`."""

    def step_s(self, workers: int) -> Any:
        """Seconds of a step."""
        return self.values @ self.work.terms(workers, self.jump_from)

    def own_s(self, workers: int) -> Any:
        """Seconds of a step's own work, compression included, without working together."""
        return self.values @ self.work.own_terms(workers, self.jump_from)

    def images_per_s(self, workers: int) -> Any:
        """Images per second of all workers."""
        return self.work.images(workers) / self.step_s(workers)

    def gain(self, workers: int) -> Any:
        """Share by which the last of N workers (at least 2) raises images/s: 0.06 is 6% more, a negative share is a slowdown."""
        return self.images_per_s(workers) / self.images_per_s(workers - 1) - 1

    def parts_s(self, workers: int) -> Any:
        """Seconds of a step's own work, messages, bytes, jump and compression (last axis); their sum is `step_s`."""
        return self.values * self.work.terms(workers, self.jump_from)

    def communication_share(self, workers: int) -> Any:
        """Share of a step that is messages, bytes, compression and a jump from 2 workers on, 0 to 1."""
        parts = self.parts_s(workers)
        together = parts[..., 3] if self.jump_from == 2 else 0.0
        return (parts[..., 1] + parts[..., 2] + parts[..., 4] + together) / self.step_s(workers)


@dataclass(frozen=True)
class Fit(Model):
    """The model fitted to a sweep's trials."""

    compute_s: float
    """Seconds of own work per step (c); with strong scaling, of the whole global batch on one worker."""
    latency_s: float
    """Seconds per message (a)."""
    s_per_byte: float
    """Seconds per byte (b)."""
    jump_s: float
    """Seconds (d): from 3 workers on, a slow host's own work, like `compute_s`; from 2 on, the fixed cost of working together."""
    compression_s: float
    """Seconds to compress (k); 0 without compression, or if it can't be separated from own work."""
    held_out: dict[int, float]
    """Error in percent of predicting a number's median step from the other numbers, by number of workers; positive: too slow."""
    odd: tuple[int, float] | None
    """Number of workers far from the others' curve, and the share by which its step takes longer; None if there is none."""
    noise: float
    """Standard deviation of the repeats' seconds for the same number of workers, as a share of the seconds."""
    counts: tuple[int, ...]
    """The measured numbers of workers, ascending."""
    own: dict[int, float]
    """Seconds of own work in profiled steps, by number of workers; empty if there are none."""
    timed: bool
    """True if own work was timed separately from the trials, not in profiled steps."""
    resampled: Model = field(repr=False, compare=False)

    def draws(self, quantity: str, workers: int) -> Vector:
        """Values of a parameter, or results of a method, in all resamples."""
        if quantity in PARAMETERS:
            return self.resampled.values[:, PARAMETERS.index(quantity)]
        drawn: Vector = getattr(self.resampled, quantity)(workers)
        return drawn

    @property
    def effective_mbit_s(self) -> float | None:
        """Bandwidth equal to the seconds per byte, 10^6 bits per second; None if bytes take, or may take, less than 1% of a step."""
        most = self.counts[-1]
        least = self.interval("s_per_byte", most)[0] * self.work.sent(most).bytes
        return 8e-6 / self.s_per_byte if least > 0.01 * self.step_s(most) else None

    def interval(self, quantity: str, workers: int) -> tuple[float, float]:
        """The 95% interval (low, high) of the resamples, as in `interval("gain", 4)`; for a parameter, `workers` is ignored.

        Percentiles of a residual bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapters 9 and 13).
        """
        low, high = np.quantile(self.draws(quantity, workers), [0.025, 0.975])
        return float(low), float(high)


def _step_seconds(timing: Timing, work: Work) -> float:
    """Seconds per step of a measured trial: its images divided by its images/s."""
    return work.images(timing.workers) / (timing.images_per_s or math.nan)


def fit(
    timings: Sequence[Timing],
    work: Work,
    sweep: str = "",
    own: Mapping[int, float] | None = None,
    quick: Collection[int] = (),
    hosts: Sequence[str] = (),
    timed: bool = False,
) -> Fit:
    """The model fitted to every repeat of one group (same scaling, epochs, checkpoint_every); failed trials are left out.

    Least squares of relative errors, no parameter below 0.

    Args:
        timings: rows of one group, at least one.
        work: the work of their step.
        sweep: its name, for the commands in messages.
        own: seconds of a step's own work, compression included, of the slowest host, by number of workers, from profiled steps; numbers
            without a measured trial are left out.
        quick: numbers of workers whose newest hosts are known to be no slower than the others, so no slow host explains a jump there.
        hosts: names and addresses in the inventory, the most that a command requests; empty if unknown.
        timed: whether `own` was timed separately from the trials, not in their profiled steps.

    Raises:
        Refused: these rows allow no conclusion.
    """
    rows = [row for row in timings if row.measured]
    measure = functools.partial(again, rows or timings, sweep)
    _enough(rows, measure, len(hosts))
    counts = sorted({row.workers for row in rows})
    steps = {n: [_step_seconds(row, work) for row in rows if row.workers == n] for n in counts}
    data = _Data(work, steps, {n: own[n] for n in counts if own and n in own}, timed)
    fitted = data.fit(data.jump(quick))
    _sure(fitted, steps, measure, on_one_machine(hosts))
    return fitted


Measured = dict[int, list[float]]
"""Seconds per step of every repeat, by number of workers, ascending."""


@dataclass(frozen=True)
class _Data:
    """Data of the fit: seconds of steps, and of own work if known."""

    work: Work
    steps: Measured
    own: dict[int, float]
    timed: bool = False
    """True if own work was timed separately from the trials: it then stays known for a held-out number of workers."""

    def without(self, workers: int) -> "_Data":
        kept = {n: seconds_of for n, seconds_of in self.steps.items() if n != workers}
        return replace(self, steps=kept, own={n: seconds for n, seconds in self.own.items() if self.timed or n != workers})

    @property
    def observed(self) -> dict[int, float]:
        """Own work without the cost of profiling, which one worker's trials reveal: their unprofiled step is own work only."""
        profiled = not self.timed and 1 in self.own and 1 in self.steps
        profiling = statistics.median(self.steps[1]) / self.own[1] if profiled else 1.0
        return {n: seconds * profiling for n, seconds in self.own.items()}

    @property
    def tells_compression(self) -> bool:
        """True if own work with and without compression was observed: then k can be separated from c."""
        return self.work.compressed and 1 in self.own and len(self.own) > 1

    def design(self, jump_from: int | None) -> Vector:
        """Design matrix, one row per measurement, divided by its number's median: errors are relative, and no outlier sets its own weight.

        Then one row for the own work of each number of workers, which weighs as much as all its repeats together.
        """
        work = replace(self.work, compressed=self.tells_compression)
        rows = [work.terms(n, jump_from) / statistics.median(seconds_of) for n, seconds_of in self.steps.items() for _ in seconds_of]
        own = [
            work.own_terms(n, jump_from) / seconds * weight
            for (n, seconds), weight in zip(self.observed.items(), self.weights(), strict=True)
        ]
        return np.array([*rows, *own])

    def targets(self) -> Vector:
        """Target values of the rows of `design`."""
        rows = [seconds / statistics.median(seconds_of) for seconds_of in self.steps.values() for seconds in seconds_of]
        return np.array([*rows, *self.weights()])

    def weights(self) -> Vector:
        """Weights of the observations of own work for least squares: square roots of their numbers of repeats."""
        return np.sqrt([float(self.repeats(n)) for n in self.own])

    def repeats(self, workers: int) -> int:
        """Number of trials with `workers` workers; for a held-out number of workers, the number of trials with another."""
        return len(self.steps.get(workers) or next(iter(self.steps.values())))

    def fit(self, jump_from: int | None) -> Fit:
        """The model with a jump at this number of workers, or none."""
        best = Model(self.work, jump_from, self.solve(jump_from))
        noise = math.sqrt(_noise([np.log(seconds_of) for seconds_of in self.steps.values()]))
        return Fit(
            self.work,
            jump_from,
            best.values,
            **dict(zip(PARAMETERS, best.values.tolist(), strict=True)),
            held_out=self.held_out(jump_from),
            odd=None if jump_from else self.odd(noise),
            noise=noise,
            counts=tuple(self.steps),
            own=self.own,
            timed=self.timed,
            resampled=Model(self.work, jump_from, self.resample(best)),
        )

    def solve(self, jump_from: int | None) -> Vector:
        """Least-squares solution: the parameters."""
        return _least_squares(self.design(jump_from), self.targets()[None, :])[0]

    def held_out(self, jump_from: int | None) -> dict[int, float]:
        """Predictions of each number of workers from the others, if these are enough for a fit; the jump stays in place."""
        if len(self.steps) <= _parameters(jump_from):
            return {}
        return {n: (self._predicted(n, jump_from) / statistics.median(seconds_of) - 1) * 100 for n, seconds_of in self.steps.items()}

    def _predicted(self, left_out: int, jump_from: int | None) -> float:
        """Seconds per step with this many workers, from the other numbers."""
        return float(Model(self.work, jump_from, self.without(left_out).solve(jump_from)).step_s(left_out))

    def odd(self, noise: float) -> tuple[int, float] | None:
        """Outlier: the number of workers without which the others fit a curve best, if it is far from that curve.

        One worker is never an outlier, because without it own work is a guess. Few numbers have none, as any omission leaves a perfect fit.
        """
        if len(self.steps) < ENOUGH_FOR_ODD:
            return None
        worst = min(self.steps, key=lambda n: self.without(n)._remainder(None))
        longer = statistics.median(self.steps[worst]) / self._predicted(worst, None) - 1
        return (worst, longer) if worst > 1 and abs(longer) > max(ODD, ODD_NOISE * noise) else None

    def jump(self, quick: Collection[int]) -> int | None:
        """Number of workers from which a jump explains the measurements better than a smooth curve; None if there is none.

        Needs more numbers of workers than parameters. If neither one worker nor own work was measured, the second measured number is not
        tried: a jump there would look like the cost of bytes.
        """
        if len(self.steps) <= WITH_JUMP:
            return None
        known = [n for n in list(self.steps)[1 if 1 in self.steps or self.own else 2 :] if n == 2 or n not in quick]
        # Compression already is a fixed cost of working together.
        tried = [n for n in known if n > 2 or not self.tells_compression]
        if not tried:
            return None
        left = {n: self._remainder(n) for n in tried}
        spare = len(self.targets()) - WITH_JUMP - self.tells_compression
        best = min(left, key=lambda n: left[n])
        ratio = (self._remainder(None) - left[best]) / max(left[best], 1e-12) * spare
        unlikely = float(fdtrc(1, spare, max(0.0, ratio))) * len(left) < JUMP_CHANCE
        values = self.solve(best)
        return best if unlikely and values[3] >= JUMP * values[0] else None

    def _remainder(self, jump_from: int | None) -> float:
        """Sum of the squared relative errors after fitting."""
        errors = self.design(jump_from) @ self.solve(jump_from) - self.targets()
        return float(errors @ errors)

    def resample(self, best: Model) -> Vector:
        """Parameters refitted to resampled data: the curve plus deviations of each repeat and of each number of workers.

        Residuals are logarithms of measured over fitted seconds. Within a number of workers, they are drawn with replacement. The medians'
        distance from the curve beyond this noise is drawn from a normal distribution: a bootstrap of hierarchical data
        (Davison and Hinkley, Bootstrap Methods and their Application, 1997, section 3.8). Own work has no repeats: its deviation from the
        curve is drawn from a normal distribution, like that of the mean of the number's repeats.
        """
        generator = np.random.default_rng(0)
        residuals = [np.log(np.array(seconds_of) / best.step_s(n)) for n, seconds_of in self.steps.items()]
        within = np.concatenate([one - one.mean() for one in residuals])
        within *= math.sqrt(len(within) / (len(within) - len(self.steps)))
        group = np.array([row for row, one in enumerate(residuals) for _ in one])
        own_residuals = [np.full(self.repeats(n), math.log(seconds / best.own_s(n))) for n, seconds in self.observed.items()]
        misfit = _misfit(residuals, own_residuals, _parameters(best.jump_from) + self.tells_compression)
        shared = generator.normal(0.0, misfit, (RESAMPLES, len(self.steps)))
        drawn = generator.choice(within, (RESAMPLES, len(group))) + shared[:, group]
        expected = np.array([float(best.step_s(n)) / statistics.median(seconds_of) for n, seconds_of in self.steps.items()])
        targets = np.hstack([expected[group] * np.exp(drawn), self._own_targets(best, misfit, _noise(residuals), generator)])
        return _least_squares(self.design(best.jump_from), targets)

    def _own_targets(self, best: Model, misfit: float, noise: float, generator: np.random.Generator) -> Vector:
        """Resampled own work; `noise` is the variance of a single repeat."""
        expected = np.array([float(best.own_s(n)) / seconds for n, seconds in self.observed.items()])
        deviations = np.sqrt(misfit**2 + noise / self.weights() ** 2)
        drawn: Vector = self.weights() * expected * np.exp(generator.normal(0.0, 1.0, (RESAMPLES, len(expected))) * deviations)
        return drawn


def _least_squares(design: Vector, targets: Vector) -> Vector:
    """Non-negative parameters for each row of `targets`; columns are first scaled to equal length, since seconds per byte are so small."""
    lengths = np.linalg.norm(design, axis=0)
    lengths[lengths == 0] = 1.0
    scaled = design / lengths
    values: Vector = np.array([nnls(scaled, target)[0] for target in targets]) / lengths
    values[:, 0] = np.maximum(values[:, 0], LEAST_WORK_S)
    return values


def _parameters(jump_from: int | None) -> int:
    """Parameters that step times determine; k follows from own work."""
    return FEWEST_COUNTS if jump_from is None else WITH_JUMP


def _misfit(residuals: Sequence[Vector], own: Sequence[Vector], parameters: int) -> float:
    """Standard deviation of the medians from the curve beyond the noise: a variance component.

    `own` are the residuals of own work, each repeated by its weight.
    """
    groups = [*residuals, *own]
    spare = len(groups) - parameters
    if spare < 1:
        return 0.0
    together = np.concatenate(groups)
    between = sum(len(one) * float(one.mean() - together.mean()) ** 2 for one in groups) / spare
    return math.sqrt(max(0.0, between - _noise(residuals)) * len(groups) / len(together))


def _noise(values: Sequence[Vector]) -> float:
    """Variance of the values for the same number of workers."""
    return sum(float(((one - one.mean()) ** 2).sum()) for one in values) / sum(len(one) - 1 for one in values)


def again(rows: Sequence[Timing], sweep: str, repeats: int, workers: str | None = None, anew: bool = False) -> str:
    """The command that measures more of the same group: `ansible-playbook sweep.yml -e sweep=... -e workers=1-5 ...`.

    Args:
        rows: rows of the group, at least one.
        sweep: its name.
        repeats: of each number of workers.
        workers: as typed; empty for all hosts, None for the numbers in the rows.
        anew: whether to use a new name, with this sweep's configuration.
    """
    given: dict[str, Any] = {"sweep": f"{sweep}-2", "config": f"sweeps/{sweep}/config.yml"} if anew else {"sweep": sweep}
    every = sorted({row.checkpoint_every for row in rows})
    given |= {
        "workers": _listed(sorted({row.workers for row in rows})) if workers is None else workers,
        "repeats": repeats,
        "epochs": rows[0].epochs,
        "checkpoint_every": ",".join(map(str, every)) if any(every) else "",
        "scaling": STRONG if rows[0].scaling == STRONG else "",
    }
    return "ansible-playbook sweep.yml" + "".join(f" -e {name}={value}" for name, value in given.items() if value)


def _listed(counts: Sequence[int]) -> str:
    """`1-5` for numbers without a gap, else `1,3,5`, as `-e workers=` takes them."""
    if len(counts) > 1 and counts[-1] - counts[0] == len(counts) - 1:
        return f"{counts[0]}-{counts[-1]}"
    return ",".join(map(str, counts))


def _enough(rows: Sequence[Timing], measure: Callable[..., str], hosts: int) -> None:
    """Require enough numbers of workers and enough repeats; `measure` is `again` for these rows, `hosts` is 0 if unknown."""
    repeats = {n: sum(row.workers == n for row in rows) for n in sorted({row.workers for row in rows})}
    if not repeats:
        raise Refused(f"no trial succeeded; the model of a step needs {FEWEST_COUNTS} different numbers of workers. ", measure(3, ""))
    if len(repeats) < FEWEST_COUNTS:
        shortage = (
            f"only {listed(repeats)} workers were measured; the model of a step has {FEWEST_COUNTS} parameters and needs at least as many "
            "different numbers of workers"
        )
        if 0 < hosts < FEWEST_COUNTS:
            raise Refused(f"{shortage}, and the inventory has {count(hosts, 'host')}: add hosts to it, and measure again.")
        raise Refused(f"{shortage}. Measure: ", measure(3, f"1-{max(FEWEST_COUNTS, *repeats)}"))
    once = [n for n, times in repeats.items() if times < FEWEST_REPEATS]
    if 2 * len(once) >= len(repeats):
        raise Refused(
            f"{len(once)} of {len(repeats)} numbers of workers were measured only once ({listed(once)}); without at least "
            f"{FEWEST_REPEATS} repeats of most, noise and scaling look the same. Measure: ",
            measure(3),
        )


def _sure(fitted: Fit, measured: Measured, measure: Callable[..., str], one_machine: bool) -> None:
    """Require intervals that are narrow enough, and at least one clear gain."""
    ends = {n: fitted.interval("images_per_s", n) for n in measured}
    widths = {n: (high - low) / fitted.images_per_s(n) for n, (low, high) in ends.items()}
    worst = max(widths, key=lambda n: widths[n])
    gains = {n: fitted.interval("gain", n) for n in list(measured)[1:]}
    if widths[worst] > WIDEST:
        low, high = ends[worst]
        problem = (
            f"{fitted.work.rate} of {count(worst, 'worker')} are {fitted.images_per_s(worst):,.0f} with a 95% interval from {low:,.0f} "
            f"to {high:,.0f}, {widths[worst]:.0%} wide (limit: {WIDEST:.0%})"
        )
    elif all(low < 0 and high > worth(n) for n, (low, high) in gains.items()):
        intervals = ", ".join(f"{count(n, 'worker')} [{low:+.0%}, {high:+.0%}]" for n, (low, high) in gains.items())
        worth_it = f"the {WORTH:.0%} that is worth a worker"
        problem = f"no worker's gain in {fitted.work.rate} is distinguishable from 0, nor from {worth_it}: {intervals}"
    else:
        return
    why, command = _why(fitted, measured, widths[worst], measure, one_machine)
    raise Refused(f"{problem}. {why}", command)


def _why(fitted: Fit, measured: Measured, width: float, measure: Callable[..., str], one_machine: bool) -> tuple[str, str]:
    """Reason for a wide interval, with the command: repeats differ (measure more often), or no curve fits (measure again).

    There is no command if none can help: workers on one machine fit no curve, however often they are measured.
    """
    apart = {n: (max(seconds_of) - min(seconds_of)) / statistics.median(seconds_of) for n, seconds_of in measured.items()}
    off = {n: abs(statistics.median(seconds_of) / fitted.step_s(n) - 1) for n, seconds_of in measured.items()}
    noisiest, farthest = max(apart, key=lambda n: apart[n]), max(off, key=lambda n: off[n])
    most = max(map(len, measured.values()))
    if off[farthest] <= apart[noisiest]:
        repeats = min(max(MOST_REPEATS, most + 2), max(most + 2, math.ceil(most * (width / WIDEST) ** 2)))
        noisy = f"The repeats of {count(noisiest, 'worker')} lie {apart[noisiest]:.0%} apart"
        return f"{noisy}. Measure more often, with no other work on the hosts: ", measure(repeats)
    misses = f"it misses {count(farthest, 'worker')} by {off[farthest]:.0%}"
    if fitted.odd is not None:
        workers, longer = fitted.odd
        misses = f"{count(workers, 'worker')} take {abs(longer):.0%} {'longer' if longer > 0 else 'less'} than the others suggest"
    agree = f"The repeats agree within {apart[noisiest]:.0%}, but no curve meets all numbers of workers: {misses}{_own_grows(fitted)}. "
    if one_machine:
        return f"{agree}These workers share one machine and take each other's cores, which measuring again does not change.", ""
    advice = "See that the hosts are equally fast, free of other work and not parts of one machine (ansible-playbook doctor.yml)"
    return f"{agree}{advice}, then measure anew: ", measure(most, anew=True)


def _own_grows(fitted: Fit) -> str:
    """Sentence on own work that grows with the workers, as on a shared machine; empty if it does not, or is unknown."""
    compressing = {n: fitted.compression_s * fitted.work.terms(n)[4] for n in fitted.own}
    alike = {n: (seconds - compressing[n]) / float(fitted.work.own_terms(n)[0]) for n, seconds in fitted.own.items()}
    if not alike or alike[max(alike)] < (1 + ODD) * alike[min(alike)]:
        return ""
    fewest, most = min(alike), max(alike)
    work = f"the same {fitted.work.called}s" if fitted.work.scaling == STRONG else "a step"
    return f"; own work for {work} grows from {alike[fewest]:.3g} s with {fewest} to {alike[most]:.3g} s with {count(most, 'worker')}"
