"""Text of `analysis.md`: the advised number of workers, the reasons, and the method, with tables. Pure functions."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from control.campaign.timings import STRONG, WEAK
from control.common.text import Number, count, listed, markdown_table
from control.runs.results import step_profile
from control.sweep.scaling import fitting
from control.sweep.scaling.advice import Advice, Extras, Findings, Gain, Study
from control.sweep.scaling.fitting import Fit, Work
from trainer.network.sockets_all_reduce import ONE_HOP

SHOWN_GAINS = 3
COMMAND = re.compile(r"ansible-playbook \S+\.yml(?: -e \S+)*")
VISIBLE = 1.02
"""Smallest ratio of two medians that counts as a difference."""


def analysis(found: Findings) -> str:
    """The whole text, Markdown: headings, paragraphs, lists, tables and one indented block."""
    studies, extras = found.studies, found.extras
    each = [section for build in (_measured, _model, _start_up, _wire) for one in studies for section in [build(one, extras)]]
    energy = [_energy(one, extras) for one in studies]
    title = "What do saved states cost?" if found.about_saved_states else "How many workers?"
    costs = _checkpoints(found)
    body = [costs, *each] if found.about_saved_states else [*each, costs]
    parts = [f"# {title}", answers(found), *body, *energy, _split(extras), _failed(found), _method(studies)]
    return "\n\n".join(part for part in parts if part) + "\n"


def answers(found: Findings) -> str:
    """The answer of every study, then the measured cost of saved states; only that cost in a sweep about saved states."""
    own = [] if found.about_saved_states else [answer(one, found.extras) for one in found.studies]
    return "\n\n".join(part for part in [*own, _saved_states(found)] if part)


def _saved_states(found: Findings) -> str:
    """One sentence per group that differs only in checkpoint_every: the additional training time relative to the rarest saving.

    Empty if no two trials differ in it alone.
    """
    costs, groups, against = found.saved_states, dict[str, list[str]](), dict[str, str]()
    for row in costs:
        # The number of workers, and what else differs between the groups.
        others = {"scaling": f"{row['scaling']} scaling", "epochs": count(row["epochs"], "epoch")}
        differing = [words for name, words in others.items() if len({one[name] for one in costs}) > 1]
        group = ", ".join([count(row["workers"], "worker"), *differing])
        if row["checkpoint_every"] == row["compared_with"]:
            groups[group] = []
            against[group] = _every(row["checkpoint_every"])
        else:
            groups[group].append(f"{_every(row['checkpoint_every'])} {_more(row)}")
    return " ".join(
        f"Training time with the state saved, against {against[group]}: {'; '.join(more)} ({group})." for group, more in groups.items()
    )


def answer(one: Study, extras: Extras) -> str:
    """Paragraphs that begin with the answer of one study, or with the reason why there is none and the result of the medians."""
    if one.fit is None or one.advice is None:
        refusal = COMMAND.sub(lambda command: f"`{command[0]}`", one.refusal)
        parts = [f"**No answer**: {refusal}", _from_medians(one), _about(one)]
    else:
        why = [_why(one.advice, one.fit), _wire_alone(one, one.fit, extras), _jump(one, one.fit, extras), _odd(one, one.fit, extras)]
        parts = [f"{_use(one.advice)} {_certainty(one.advice)}", _joined(why), f"{_quickest(one, one.advice.workers)} {_about(one)}"]
    return "\n\n".join(part for part in parts if part)


def _joined(sentences: Sequence[str]) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


def _about(one: Study) -> str:
    """The steps and trials of a study."""
    batch = f"{one.work.called}s per worker and step" if one.work.scaling == WEAK else f"{one.work.called}s per step, shared by all workers"
    description = (
        f"{one.work.scaling.capitalize()} scaling: {one.work.batch:,} {batch}, {one.work.gradient_bytes / 1e6:,.1f} MB of gradients"
    )
    if not one.rows:
        return f"{description}."
    return f"{description}; trials of {count(one.rows[0].epochs, 'epoch')}, state saved {_every(one.rows[0].checkpoint_every)}."


def _every(steps: int) -> str:
    return f"every {count(steps, 'step')}" if steps else "at the end of an epoch"


def _use(advised: Advice) -> str:
    if advised.workers == advised.most:
        last, further = advised.gains[-2:]
        return (
            f"**Use {count(advised.workers, 'worker')}**, the most that were measured: {_speedup(advised)}, "
            f"and the {_ordinal(last.workers)} still {_brings(last)}. By the model, not measured, one more {_brings(further)}."
        )
    further_gains = [gain for gain in advised.gains if advised.workers < gain.workers <= advised.most]
    gains = ", ".join(f"the {_ordinal(gain.workers)} {_brings(gain)}" for gain in further_gains[:SHOWN_GAINS])
    speedup = f"{_speedup(advised)}; " if advised.workers > advised.fewest else ""
    workers = count(advised.workers, "worker")
    unknown = any(gain.workers == advised.workers and not gain.measured for gain in advised.gains)
    by_model = f" (by the model; {workers} were not measured)" if unknown else ""
    return f"**Use {workers}**{by_model}: {speedup}{gains}.{_together(advised, further_gains)}"


def _speedup(advised: Advice) -> str:
    base = "one" if advised.fewest == 1 else str(advised.fewest)
    return f"{advised.speedup:.2f} times the speed of {base} [{advised.speedup_low:.2f}, {advised.speedup_high:.2f}]"


def _brings(gain: Gain) -> str:
    """Text on a gain by its interval: more, less, or unclear."""
    verb = "slows it down," if gain.high < 0 else "makes no measurable difference," if gain.low <= 0 else "brings"
    return f"{verb} {round(gain.share * 100):+d}% [{round(gain.low * 100)}, {round(gain.high * 100)}]"


def _together(advised: Advice, further: Sequence[Gain]) -> str:
    """Text on the product of several gains and its required value: later gains relate to a number of workers that was already slower."""
    if not any(gain.share >= fitting.worth(gain.workers) for gain in further):
        return ""
    total = math.prod(1 + gain.share for gain in further)
    asked = math.prod(1 + fitting.worth(gain.workers) for gain in further)
    return (
        f" All {advised.most} together make {total:.2f} times the speed of {count(advised.workers, 'worker')}; "
        f"from {asked:.2f} times on they would be worth it."
    )


def _certainty(advised: Advice) -> str:
    own = advised.own_share
    others = [
        f"{share:.0%} {count(n, 'worker')}" for n, share in advised.share_of_resamples.items() if n != advised.workers and share >= 0.005
    ]
    agreement = f"{'All' if own == 1 else 'Nearly all'} resamples of the measurements give this answer."
    if others:
        agreement = f"Of the resamples of the measurements {own:.0%} give this answer, {', '.join(others)}."
    doubt = "More repeats would decide it." if advised.doubtful else ""
    below = "" if advised.fewest == 1 else f"Fewer than {advised.fewest} workers were not measured."
    return _joined([agreement, doubt, below])


def _why(advised: Advice, fitted: Fit) -> str:
    own, messages, sent, jump, compression = fitted.parts_s(advised.most)
    parts = [f"{_ms(own)} of own work", *([f"{_ms(compression)} of compression"] if compression else [])]
    parts += [f"{_ms(messages)} of messages", f"{_ms(sent)} of bytes"]
    if jump:
        parts.append(f"{_ms(jump)} {'of working together at all' if fitted.jump_from == 2 else 'of waiting for a slow host'}")
    share = f"{advised.communication_share:.0%} [{round(advised.communication_low * 100)}, {round(advised.communication_high * 100)}]"
    return f"{share} of a step at {count(advised.most, 'worker')} is communication: {_ms(fitted.step_s(advised.most))} are {listed(parts)}."


def _wire_alone(one: Study, fitted: Fit, extras: Extras) -> str:
    """The fit's bandwidth beside the time on links of known rates; empty without a link."""
    if extras.one_machine:
        return ""
    moved = fitted.effective_mbit_s
    seen = f"Bytes move as fast as at {_rate(moved)}" if moved else "Bytes have no visible cost"
    rows = sorted(one.wire(extras.mbit_s), key=lambda row: (not row["measured"], -row["mbit_s"]))
    times = [f"{row['seconds']:,.2f} s" if row["seconds"] >= 0.1 else _ms(row["seconds"]) for row in rows]
    links = [f"at {'the measured ' if row['measured'] else ''}{_rate(row['mbit_s'])} {time}" for row, time in zip(rows, times, strict=True)]
    return f"{seen}; the wire alone needs {listed(links)}."


def _rate(mbit_s: float) -> str:
    return f"{mbit_s / 1000:,.3g} Gbit/s" if mbit_s >= 1000 else f"{mbit_s:,.3g} Mbit/s"


def _jump(one: Study, fitted: Fit, extras: Extras) -> str:
    """The meaning of a jump in the step's time."""
    if fitted.jump_from is None:
        return ""
    low, high = (end * 1000 for end in fitted.interval("jump_s", fitted.jump_from))
    if fitted.jump_from == 2:
        return (
            f"Working together at all costs {_ms(fitted.jump_s)} [{low:,.0f}, {high:,.0f}] per step, however many workers there are; "
            "a second host that is slower than the first looks the same."
        )
    first = fitted.jump_from
    waiting = fitted.parts_s(first)[3]
    without = fitted.step_s(first) - waiting
    if extras.one_machine:
        return f"From {first} workers on a step takes {waiting / without:.0%} longer than the other numbers of workers suggest: {_SHARED}."
    gain = one.work.images(first) / without / fitted.images_per_s(first - 1) - 1
    return (
        f"From {first} workers on a step waits for a slow host, it seems for {one.joined(first)}: its own work takes "
        f"{fitted.jump_s / fitted.compute_s:.0%} longer, which makes a step of {first} workers {waiting / without:.0%} longer than the "
        f"other numbers of workers suggest. As fast as the others it would bring {gain:+.0%}. "
        "`ansible-playbook doctor.yml` shows how fast each host is."
    )


_SHARED = "workers of one machine take each other's cores"


def _odd(one: Study, fitted: Fit, extras: Extras) -> str:
    if fitted.odd is None:
        return ""
    workers, longer = fitted.odd
    names = one.joined(workers)
    guess = f", as if {names}, which joins there, were slow" if longer > 0 and names and not extras.one_machine else ""
    return (
        f"With {count(workers, 'worker')} a step takes {abs(longer):.0%} {'longer' if longer > 0 else 'less'} than the other numbers of "
        f"workers suggest{guess}; {_SHARED if extras.one_machine else '`ansible-playbook doctor.yml` shows how fast each host is'}."
    )


def _quickest(one: Study, advised: int) -> str:
    """Text on the end-to-end times of the quickest and of the advised number of workers."""
    seconds = {row["workers"]: row["seconds_end_to_end"]["median"] for row in one.measured()}
    first = min(seconds, key=lambda n: seconds[n])
    other = f"; {count(advised, 'worker')} took {seconds[advised]:,.1f} s" if advised in seconds and advised != first else ""
    epochs = count(one.rows[0].epochs, "epoch")
    return f"From launch to end, {epochs} took the least time with {count(first, 'worker')}: {seconds[first]:,.1f} s (median){other}."


def _from_medians(one: Study) -> str:
    """Conclusions without a model; empty if nothing was measured."""
    if len(one.counts) < 2:
        return ""
    best, first, base = one.by_medians(), one.quickest(), one.counts[0]
    if one.fit:
        # The refusal has the medians.
        return _quickest(one, first)
    shown = f"({one.medians_in_words()})"
    if one.faster(best) >= VISIBLE:
        times = f"{count(first, 'worker')} are {one.faster(best):.2f} times as fast as {best} {shown}"
        if one.contradicted(best):
            return f"Nor do the medians alone give one: {times}, and noise alone may do that. {_quickest(one, first)}"
        return (
            f"From the medians alone, with no account of noise: {count(best, 'worker')}; {times}, less than the {fitting.WORTH:.0%} that a "
            f"worker must bring. {_quickest(one, best)}"
        )
    times = f", {one.faster(base):.2f} times the {one.work.rate} of {count(base, 'worker')}" if best != base else ""
    return f"From the medians alone, with no account of noise: {count(best, 'worker')}{times} {shown}. {_quickest(one, best)}"


def _measured(one: Study, _: Extras) -> str:
    rows = one.measured()
    if not rows:
        return ""
    over = "" if rows[0]["speedup_over"] == 1 else f" over {count(rows[0]['speedup_over'], 'worker')}"
    times = [column for name in ("end-to-end s", "training s", one.work.rate) for column in (f"{name}: median", "mean ± std")]
    cells = []
    for row in rows:
        spreads = [(row["seconds_end_to_end"], 1), (row["seconds_training"], 1), (row["images_per_s"], 0)]
        pairs = [cell for spread, decimals in spreads for cell in (Number(spread["median"], decimals), _mean(spread, decimals))]
        cells.append([row["workers"], row["trials"], *pairs, f"{row['speedup']:.2f}", f"{row['efficiency']:.0%}"])
    explanation = (
        "End-to-end: from the launch, before files are written to the hosts and sessions start there, to the end of the last worker. "
        "Training: steps, saved states and validation."
    )
    header = ["workers", "trials", *times, f"speedup{over}", f"efficiency{over}"]
    return _section(f"Measured: {one.work.scaling} scaling", explanation, header, cells)


def _mean(spread: Mapping[str, Any], decimals: int) -> str:
    std = spread["std"]
    return f"{Number(spread['mean'], decimals)} ± {'-' if std is None else Number(std, decimals)}"


def _model(one: Study, _: Extras) -> str:
    if one.fit is None:
        return ""
    columns = {"measured ms": "measured_ms", "T(n) ms": "model_ms", "own work": "own_work_ms"}
    columns |= {"own work apart": "own_work_measured_ms"} if one.fit.own else {}
    columns |= {"compression": "compression_ms"} if one.fit.compression_s else {}
    columns |= {"messages": "messages_ms", "bytes": "bytes_ms"}
    columns |= {} if one.fit.jump_from is None else {"working together" if one.fit.jump_from == 2 else "slow host": "jump_ms"}
    with_compression = ", compression included; c and k are" if one.work.compressed else "; c is"
    source = "timed alone before and after the trials" if one.fit.timed else "in profiled steps"
    apart = f"Own work apart: of the slowest host {source}{with_compression} fitted to it, too. " if one.fit.own else ""
    explanation = (
        f"{_parameters(one.fit)} Milliseconds of a step; measured: the median. {apart}Error: of the model against it. "
        "Held out: the error of predicting this number of workers from the others (a jump, if any, stays where it is)"
        f"{'' if set(one.fit.own) - {1} else '; without the trials of 1 worker its own work can only be guessed'}."
    )
    cells = []
    for row in one.modelled():
        (low, high), held_out = row["images_per_s_interval"], row["held_out_error_percent"]
        errors = [f"{row['error_percent']:+.1f}%", "-" if held_out is None else f"{held_out:+.1f}%"]
        times = ["-" if row[name] is None else Number(row[name], 1) for name in columns.values()]
        cells.append([row["workers"], *times, *errors, f"{row['images_per_s']:,.0f} [{low:,.0f}, {high:,.0f}]"])
    header = ["workers", *columns, "error", "held out", f"{one.work.rate} by the model"]
    return _section(f"The model of a step: {one.work.scaling} scaling", explanation, header, cells)


def _parameters(fitted: Fit) -> str:
    parameters = []
    for name, label, unit, factor in (
        ("compute_s", "own work c", "ms", 1e3),
        ("latency_s", "a message a", "ms", 1e3),
        ("s_per_byte", "a byte b", "ns", 1e9),
        ("jump_s", f"jump d from {fitted.jump_from} workers on", "ms", 1e3),
        ("compression_s", "compression k", "ms", 1e3),
    ):
        low, high = (end * factor for end in fitted.interval(name, 1))
        if {"jump_s": fitted.jump_from is not None, "compression_s": high > 0}.get(name, True):
            parameters.append(f"{label} {getattr(fitted, name) * factor:,.3g} {unit} [{low:,.3g}, {high:,.3g}]")
    return f"Fitted: {', '.join(parameters)}. The repeats vary by {fitted.noise:.1%} (standard deviation)."


def _start_up(one: Study, _: Extras) -> str:
    rows = one.start_up()
    if not rows:
        return ""
    low, high = (f"{extreme(row['share'] for row in rows):.0%}" for extreme in (min, max))
    explanation = (
        f"Of the end-to-end time {low if low == high else f'{low} to {high}'} is not training but start-up, snapshots and the end. "
        f"With more than {count(one.rows[0].epochs, 'epoch')} it counts for less."
    )
    cells = [[row["workers"], Number(row["seconds_end_to_end"], 1), Number(row["seconds_other"], 1), f"{row['share']:.0%}"] for row in rows]
    return _section(f"Start-up: {one.work.scaling} scaling", explanation, ["workers", "end-to-end s", "not training s", "share"], cells)


def _wire(one: Study, extras: Extras) -> str:
    rows = one.wire(extras.mbit_s)
    if not rows or extras.one_machine:
        return ""
    sent = one.work.sent(rows[0]["workers"]).bytes
    explanation = f"In a step of {count(rows[0]['workers'], 'worker')} each sends and receives {sent / 1e6:,.1f} MB. That alone takes:"
    cells = [[_rate(row["mbit_s"]) + (" (measured)" if row["measured"] else ""), f"{row['seconds'] * 1000:,.1f}"] for row in rows]
    return _section(f"The wire: {one.work.scaling} scaling", explanation, ["link", "ms per step"], cells)


def _checkpoints(found: Findings) -> str:
    rows = found.saved_states
    if not rows:
        return ""
    explanation = "Mean ± standard deviation of training seconds; the difference of means with its 95% interval (Welch's t)."
    header = ["scaling", "workers", "epochs", "state saved", "trials", "training s", "more than the rarest"]
    cells = [
        [*(row[key] for key in header[:3]), _every(row["checkpoint_every"]), row["trials"], _mean(row["seconds_training"], 1), _more(row)]
        for row in rows
    ]
    return _section("What saved states cost", explanation, header, cells)


def _more(row: Mapping[str, Any]) -> str:
    low, high = row["more_percent_low"], row["more_percent_high"]
    if row["checkpoint_every"] == row["compared_with"]:
        return "-"
    if low is None or high is None:
        return f"{row['more_percent']:+.1f}%, noise unknown: a single trial"
    within = ", within the noise" if low <= 0 <= high else ""
    return f"{row['more_percent']:+.1f}% [{low:.1f}, {high:.1f}]{within}"


def _energy(one: Study, extras: Extras) -> str:
    rows = one.energy(extras)
    if not rows:
        return ""
    least = min(rows, key=lambda row: row["joules_per_epoch"]["median"])
    explanation = (
        f"All hosts together, mean ± standard deviation. {count(least['workers'], 'worker')} needed the least, "
        f"{least['joules_per_epoch']['median']:,.0f} J per epoch (median; {least['source']}). "
        "The meter counts whole trials, start-up included; the estimate counts training alone."
    )
    cells = [[row["workers"], row["trials"], _mean(row["joules_per_epoch"], 0), row["source"]] for row in rows]
    return _section(f"Energy: {one.work.scaling} scaling", explanation, ["workers", "trials", "joules per epoch", "source"], cells)


def _split(extras: Extras) -> str:
    if not extras.split:
        return ""
    phases = list(dict.fromkeys(phase for hosts in extras.split.values() for medians in hosts.values() for phase in medians))
    most = max(extras.split)
    sentence = step_profile.sentence({host: dict(medians) for host, medians in extras.split[most].items()})
    explanation = _joined(["Milliseconds of a step on each host.", f"With {count(most, 'worker')}: {sentence}" if sentence else ""])
    cells = [
        [n, host, *(Number(medians.get(phase, 0.0), 1) for phase in phases), Number(sum(medians.values()), 1)]
        for n, hosts in sorted(extras.split.items())
        for host, medians in hosts.items()
    ]
    header = ["workers", "host", *(step_profile.TITLES.get(phase, phase) for phase in phases), "step"]
    return _section("A step on every host", explanation, header, cells)


def _failed(found: Findings) -> str:
    rows = found.failed
    if not rows:
        return ""
    lines = [
        f"- {count(row.workers, 'worker')}, repeat {row.repeat}, {row.scaling} scaling, {count(row.epochs, 'epoch')}, "
        f"state saved {_every(row.checkpoint_every)}: {row.state}"
        for row in rows
    ]
    return "\n".join([f"## Failed trials\n\nLeft out above: {len(rows)} of {len(found.timings)}.\n", *lines])


def _method(studies: Sequence[Study]) -> str:
    """Formula, units, rules, sources."""
    formulas = {
        WEAK: "    T(n) = c + d       + k + m(n) a + s(n) b",
        STRONG: "    T(n) = (c + d) / n + k + m(n) a + s(n) b",
    }
    shown = "\n".join(f"{formulas[one.work.scaling]}    ({one.work.scaling} scaling)" for one in studies)
    formula = f"Seconds of a step of n workers:\n\n{shown}" if shown else ""
    return "\n\n".join(["## How this was computed", formula, _rules(studies[0].work)])


def _rules(work: Work) -> str:
    return f"""\
- c: seconds of a step's own work; a: seconds per message; b: seconds per byte. m(n) and s(n): messages and bytes that each worker sends
  in the all-reduces of a step. With `reduction.transport: tensorflow` these are rings: 2 (n - 1) messages and 2 (n - 1) / n of the bytes
  (Patarasuk, Yuan, JPDC 69, 2009). The direct exchange sends as many, all at the same time, so that its a is the work per message and
  not its travel time; a sum of up to {ONE_HOP // 1024} KiB per worker goes whole to every other, in n - 1 messages (Thakur, Rabenseifner,
  Gropp, IJHPCA 19(1), 2005). Nothing overlaps.
- k: seconds to compress and to apply what was compressed, less what a worker alone does instead: from 2 workers on, where gradients are
  compressed, and known where steps were profiled with 1 worker and with more. Otherwise c contains it.
- d: a jump, only where the measurements show one (F test, {fitting.JUMP_CHANCE:.0%} divided by the jumps tried, and at least
  {fitting.JUMP:.0%} of c). From 3 workers on: a slow host, for which all wait. From 2 on: what working together costs at all; then it is
  added whole.
- A host's own work is its step with the same {work.called}s, compression included and nothing sent, timed alone before and after the trials
  (the mean); it is that of the slowest host, or of the usual one if none counts as slow. Without it, that of profiled steps (median of
  input, forward/backward, compression and apply), less what profiling adds, where one worker's steps show it. It is fitted, too: for each
  number of workers c and k alone, with d of a slow host, and c over n with strong scaling. It weighs as much as that number's repeats. What
  profiled steps of a number that is held out say is held out with it.
- A measured step: {work.called}s of a step, the mean of an epoch, over {work.rate}. Every repeat is fitted by least squares of relative
  errors with no parameter below 0 (scipy.optimize.nnls; Lawson, Hanson, Solving Least Squares Problems, 1974).
- [low, high]: 95% of {fitting.RESAMPLES:,} resamples in which the deviations of repeats from their number of workers, and of these
  from the curve, and of own work are drawn anew (hierarchical bootstrap: Davison, Hinkley, Bootstrap Methods and their Application,
  1997, 3.8; Efron, Tibshirani, An Introduction to the Bootstrap, 1993).
- The answer: workers are added as long as those added bring {fitting.WORTH:.0%} more {work.rate} each, several together on average (beyond
  6 workers half of what an ideal one would bring, 1 / (n - 1), when that is less).
- No answer is given from fewer than {fitting.FEWEST_COUNTS} numbers of workers, from single trials, from an interval of {work.rate} wider
  than {fitting.WIDEST:.0%}, or when every gain may be 0 as well as worth it.
- Speedup and efficiency: of median {work.rate} over the fewest workers measured. std: standard deviation of the sample.
- {work.rate} are not accuracy: with weak scaling the global batch grows with the workers, and the same accuracy may take more
  {work.called}s."""


def _section(title: str, explanation: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    return f"## {title}\n\n{explanation}\n\n{markdown_table(header, rows)}"


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.{0 if seconds >= 0.01 else 1}f} ms"
