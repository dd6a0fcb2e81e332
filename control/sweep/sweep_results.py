"""A sweep's results from its files: analysis.md, pictures, summary.json. Recomputed each time, written only if changed."""

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control import plots, text
from control.campaign import SUMMARY
from control.runs import step_profile
from control.sweep import advice_text, sweep
from control.sweep.advice import Extras, Study, as_dict, by_medians, studies
from control.sweep.scaling import Work, again, on_one_machine
from control.sweep.timings import FILE, STRONG, WEAK, Timing, Trial, read
from trainer.errors import ConfigError
from trainer.files import read_json, write_json, write_text

PROFILE_PICTURE = "split.png"
MOST_BARS = 30
"""Maximum number of bars in one picture."""


@dataclass(frozen=True)
class Results:
    """The results of a sweep."""

    rows: list[Timing]
    studies: list[Study]
    answer: str
    """The answer in words, for every measured scaling."""
    following: tuple[str, str]
    """The next step, and its one command."""
    changed: bool
    """Whether any file differs from before."""


Samples = Mapping[Trial, Mapping[str, Sequence[dict[str, Any]]]]
"""Records of profiled steps, by trial and host."""


def conclude(folder: Path, watts_per_node: float | None = None, typed: Callable[[str], str] = lambda text: text) -> Results:
    """Analyse all measurements so far, write all results.

    Args:
        folder: the sweep's, with timings.csv and summary.json.
        watts_per_node: power of a host during training, if known.
        typed: turns commands in analysis.md and in the answer into what the user has to type, as with `-i INVENTORY`.

    Raises:
        ConfigError: nothing was measured yet.
    """
    rows, record = read(folder / FILE), dict(read_json(folder / SUMMARY))
    if not any(row.measured for row in rows):
        failed = f" ({len(rows)} trials failed; their output is in {folder.name}/logs)" if rows else ""
        raise ConfigError(
            f"sweep={folder.name}: nothing is measured yet{failed}; measure: ansible-playbook sweep.yml -e sweep={folder.name}"
        )
    taken_apart = samples(folder, rows)
    found_studies = studies(
        rows,
        works(record),
        folder.name,
        own=lambda group: own_work(taken_apart, group),
        quick=lambda group: quick(taken_apart, group),
        hosts=record.get("hosts", []),
    )
    shown = next(one.rows for one in found_studies if one.rows)
    alike = on_one_machine(record.get("hosts", []))
    extras = Extras(record.get("mbit_s"), watts_per_node, joules(folder, rows), phases(taken_apart, shown), alike)
    changed = [_text(folder / "analysis.md", typed(advice_text.analysis(found_studies, rows, extras)))]
    changed += [_picture(folder / name, draw) for name, draw in pictures(rows, found_studies, extras).items()]
    changed.append(_summary(folder / SUMMARY, record, rows, as_dict(found_studies, rows, extras)))
    label, command = following(found_studies, rows, folder.name)
    return Results(rows, found_studies, typed(advice_text.answers(found_studies, rows, extras)), (label, typed(command)), any(changed))


def following(all_studies: Sequence[Study], rows: Sequence[Timing], sweep: str) -> tuple[str, str]:
    """The next step: measure what an answer lacks, or train with the answer; never a measurement that can't give one."""
    if advice_text.about_saved_states(rows):
        single = min(len([row for row in rows if row.trial.checkpoint_every == every and row.measured]) for every in _intervals(rows)) < 2
        return ("measure more", again(rows, sweep, 3)) if single else _train(sweep, max(row.workers for row in rows if row.measured))
    if lacking := next((one for one in all_studies if one.command), None):
        return "measure for an answer", lacking.command
    answered = [one for one in all_studies if one.advice]
    if doubtful := next((one for one in answered if one.advice and advice_text.doubtful(one.advice)), None):
        return "measure more", again(doubtful.rows, sweep, max(row.repeat for row in doubtful.rows) + 2)
    one = answered[0] if answered else next(one for one in all_studies if one.rows)
    return _train(sweep, one.advice.workers if one.advice else by_medians(one))


def _train(sweep: str, workers: int) -> tuple[str, str]:
    return "train with it", f"ansible-playbook train.yml -e config=sweeps/{sweep}/config.yml -e workers={workers}"


def _intervals(rows: Sequence[Timing]) -> set[int]:
    return {row.checkpoint_every for row in rows if row.measured}


def works(record: dict[str, Any]) -> list[Work]:
    """The work of a step at each scaling."""
    batches = {WEAK: record["batch_size"], STRONG: record["global_batch"]}
    images = record.get("train_images", 0)
    return [Work(scaling, batch, record.get("sent_bytes", record["gradient_bytes"]), images) for scaling, batch in batches.items()]


def pictures(rows: list[Timing], all_studies: list[Study], extras: Extras) -> dict[str, Callable[[Path], None]]:
    """File name to a function that draws it; none for a scaling without measurements."""
    drawings: dict[str, Callable[[Path], None]] = {
        "time_median.png": lambda path: plots.time_median(rows, path),
        "time_mean.png": lambda path: plots.time_mean(rows, path),
    }
    drawn = [one for one in all_studies if one.rows]
    for one in drawn:
        suffix = "" if one is drawn[0] else f"_{one.work.scaling}"
        for name, draw in (("speedup", plots.speedup), ("efficiency", plots.efficiency), ("images_per_s", plots.throughput)):
            drawings[f"{name}{suffix}.png"] = _of(draw, one)
    if len({row.checkpoint_every for row in rows if row.measured}) > 1:
        drawings["checkpoints.png"] = lambda path: plots.checkpoints(rows, path)
    if extras.split:
        bars = profile_bars(extras.split)
        drawings[PROFILE_PICTURE] = lambda path: plots.split(bars, path, "Medians of the steps that were profiled")
    return drawings


def profile_bars(by_workers: Mapping[int, Mapping[str, Mapping[str, float]]]) -> dict[str, Mapping[str, float]]:
    """One named bar per host and number of workers; if there are too many, only the slowest host at each number."""
    slowest = sum(len(hosts) for hosts in by_workers.values()) > MOST_BARS
    bars: dict[str, Mapping[str, float]] = {}
    for workers, hosts in sorted(by_workers.items()):
        shown = [max(hosts, key=lambda host: step_profile.own_work(dict(hosts[host])))] if slowest else list(hosts)
        note = ", slowest" if slowest and workers > 1 else ""
        bars |= {f"{text.count(workers, 'worker')}: {host}{note}": hosts[host] for host in shown}
    return bars


def _of(draw: Callable[..., None], one: Study) -> Callable[[Path], None]:
    return lambda path: draw(list(one.rows), one.work, one.fit, path)


def samples(folder: Path, rows: Sequence[Timing]) -> Samples:
    """Profiled steps of each measured trial that has any."""
    return {row.trial: step_profile.read(trial_folder(folder, row.trial)) for row in rows if row.measured}


def _by_workers(taken_apart: Samples, rows: Sequence[Timing]) -> dict[int, dict[str, list[dict[str, Any]]]]:
    """Samples of all trials together, by number of workers and host; numbers without samples are left out."""
    samples_by_host: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        for host, records in taken_apart.get(row.trial, {}).items():
            samples_by_host.setdefault(row.workers, {}).setdefault(host, []).extend(records)
    return dict(sorted(samples_by_host.items()))


def phases(taken_apart: Samples, rows: Sequence[Timing]) -> dict[int, dict[str, dict[str, float]]]:
    """Milliseconds of every phase of a step by number of workers and host: the median over all samples of these trials.

    Args:
        taken_apart: result of `samples`.
        rows: of one group (same scaling, epochs, checkpoint_every): steps of different batches can't be mixed.
    """
    return {workers: step_profile.medians(hosts) for workers, hosts in _by_workers(taken_apart, rows).items()}


def own_work(taken_apart: Samples, rows: Sequence[Timing]) -> dict[int, float]:
    """Seconds of a step's own work by number of workers, of the slowest host in these trials.

    Left out if any host has no samples: it may be the slowest.
    """
    hosts = {row.workers: set(row.hosts.split()) for row in rows if row.measured}
    by_workers = _by_workers(taken_apart, rows)
    return {workers: step_profile.own_seconds(by_host) for workers, by_host in by_workers.items() if hosts[workers] <= set(by_host)}


def quick(taken_apart: Samples, rows: Sequence[Timing]) -> set[int]:
    """Numbers of workers whose newest hosts are no slower than the others: if steps grow from there on, no host is to blame."""
    hosts = {row.workers: row.hosts.split() for row in rows if row.measured}
    by_workers, before, result = _by_workers(taken_apart, rows), set[str](), set[int]()
    for workers in sorted(hosts):
        by_host, earlier = by_workers.get(workers, {}), before
        before = set(hosts[workers])
        if earlier and before <= set(by_host):
            own = {host: step_profile.own_seconds({host: by_host[host]}) for host in before}
            usual = statistics.median(own[host] for host in earlier)
            result |= {workers} if all(own[host] < step_profile.SLOWER * usual for host in before - earlier) else set()
    return result


def joules(folder: Path, rows: list[Timing]) -> dict[Trial, float]:
    """Metered energy of each trial, if there was a meter."""
    paths = {row.trial: trial_folder(folder, row.trial) / "energy.json" for row in rows if row.measured}
    return {trial: float(read_json(path)["joules"]) for trial, path in paths.items() if path.is_file()}


def trial_folder(folder: Path, trial: Trial) -> Path:
    """Folder of a trial's files."""
    return folder / "trials" / sweep.run_name(folder.name, trial)


def _text(path: Path, text: str) -> bool:
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    write_text(path, text)
    return True


def _picture(path: Path, draw: Callable[[Path], None]) -> bool:
    """Draw beside the old picture: equal bytes are no change."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".draw-") as folder:
        fresh = Path(folder) / path.name
        draw(fresh)
        if path.is_file() and path.read_bytes() == fresh.read_bytes():
            return False
        fresh.replace(path)
    return True


def _summary(path: Path, record: dict[str, Any], rows: list[Timing], analysis: dict[str, Any]) -> bool:
    measured = sum(row.measured for row in rows)
    fresh = {**record, "trials_measured": measured, "trials_failed": len(rows) - measured, "analysis": analysis}
    before = path.read_text(encoding="utf-8")
    write_json(path, fresh)
    return path.read_text(encoding="utf-8") != before
