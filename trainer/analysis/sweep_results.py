"""A sweep's results from its files: analysis.md, pictures, summary.json. Written anew each time, and only where something changed."""

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.analysis import advice_text, plots, split, sweep
from trainer.analysis.advice import Extras, Study, as_dict, studies
from trainer.analysis.scaling import Work
from trainer.analysis.timings import STRONG, WEAK, Timing, Trial, read
from trainer.errors import ConfigError
from trainer.files import read_json, write_json, write_text

SPLIT_PICTURE = "split.png"


@dataclass(frozen=True)
class Results:
    """What a sweep came to."""

    rows: list[Timing]
    found: list[Study]
    answer: str
    """The answer in words, of every scaling that was measured."""
    changed: bool
    """Whether any file is another than before."""


Samples = Mapping[Trial, Mapping[str, Sequence[dict[str, Any]]]]
"""Records of steps taken apart, by trial and host."""


def conclude(folder: Path, watts_per_node: float | None = None, typed: Callable[[str], str] = lambda text: text) -> Results:
    """Analyse what was measured so far, write all results.

    Args:
        folder: the sweep's, with timings.csv and summary.json.
        watts_per_node: power of a host while it trains, when it is known.
        typed: makes commands in analysis.md and in the answer what a person has to type, as with `-i INVENTORY`.

    Raises:
        ConfigError: nothing was measured yet.
    """
    rows, record = read(folder / "timings.csv"), dict(read_json(folder / "summary.json"))
    if not any(row.measured for row in rows):
        failed = f" ({len(rows)} trials failed; their output is in {folder.name}/logs)" if rows else ""
        raise ConfigError(
            f"sweep={folder.name}: nothing is measured yet{failed}; measure: ansible-playbook sweep.yml -e sweep={folder.name}"
        )
    taken_apart = samples(folder, rows)
    found = studies(
        rows, works(record), folder.name, own=lambda group: own_work(taken_apart, group), quick=lambda group: quick(taken_apart, group)
    )
    shown = next(one.rows for one in found if one.rows)
    extras = Extras(record.get("mbit_s"), watts_per_node, joules(folder, rows), phases(taken_apart, shown))
    changed = [_text(folder / "analysis.md", typed(advice_text.analysis(found, rows, extras)))]
    changed += [_picture(folder / name, draw) for name, draw in pictures(rows, found, extras).items()]
    changed.append(_summary(folder / "summary.json", record, rows, as_dict(found, rows, extras)))
    return Results(rows, found, typed(advice_text.answers(found, rows, extras)), any(changed))


def works(record: dict[str, Any]) -> list[Work]:
    """What a step has to do at each scaling."""
    batches = {WEAK: record["batch_size"], STRONG: record["global_batch"]}
    images = record.get("train_images", 0)
    return [Work(scaling, batch, record.get("sent_bytes", record["gradient_bytes"]), images) for scaling, batch in batches.items()]


def pictures(rows: list[Timing], found: list[Study], extras: Extras) -> dict[str, Callable[[Path], None]]:
    """File name to a function that draws it; a scaling of which nothing was measured has none."""
    made: dict[str, Callable[[Path], None]] = {
        "time_median.png": lambda path: plots.time_median(rows, path),
        "time_mean.png": lambda path: plots.time_mean(rows, path),
    }
    drawn = [one for one in found if one.rows]
    for one in drawn:
        suffix = "" if one is drawn[0] else f"_{one.work.scaling}"
        for name, draw in (("speedup", plots.speedup), ("efficiency", plots.efficiency), ("images_per_s", plots.throughput)):
            made[f"{name}{suffix}.png"] = _of(draw, one)
    if len({row.checkpoint_every for row in rows if row.measured}) > 1:
        made["checkpoints.png"] = lambda path: plots.checkpoints(rows, path)
    if extras.split:
        hosts = extras.split[max(extras.split)]
        made[SPLIT_PICTURE] = lambda path: plots.split(hosts, path)
    return made


def _of(draw: Callable[..., None], one: Study) -> Callable[[Path], None]:
    return lambda path: draw(list(one.rows), one.work, one.fit, path)


def samples(folder: Path, rows: Sequence[Timing]) -> Samples:
    """What each measured trial's steps were made of, where some were taken apart."""
    return {row.trial: split.read(trial_folder(folder, row.trial)) for row in rows if row.measured}


def _by_workers(taken_apart: Samples, rows: Sequence[Timing]) -> dict[int, dict[str, list[dict[str, Any]]]]:
    """Samples of all trials together, by number of workers and host; of numbers without any there is none."""
    found: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        for host, records in taken_apart.get(row.trial, {}).items():
            found.setdefault(row.workers, {}).setdefault(host, []).extend(records)
    return dict(sorted(found.items()))


def phases(taken_apart: Samples, rows: Sequence[Timing]) -> dict[int, dict[str, dict[str, float]]]:
    """Milliseconds of every phase of a step by number of workers and host: the median over all samples of these trials.

    Args:
        taken_apart: of `samples`.
        rows: of one group (same scaling, epochs, checkpoint_every): steps of different batches are no sample.
    """
    return {workers: split.medians(hosts) for workers, hosts in _by_workers(taken_apart, rows).items()}


def own_work(taken_apart: Samples, rows: Sequence[Timing]) -> dict[int, float]:
    """Seconds of a step's own work by number of workers, of the slowest host in these trials.

    Left out where a host has no samples: it may be the slowest.
    """
    hosts = {row.workers: set(row.hosts.split()) for row in rows if row.measured}
    found = _by_workers(taken_apart, rows)
    return {workers: split.own_seconds(by_host) for workers, by_host in found.items() if hosts[workers] <= set(by_host)}


def quick(taken_apart: Samples, rows: Sequence[Timing]) -> set[int]:
    """Numbers of workers whose newest hosts are no slower than the others there: when steps grow from there on, no host is to blame."""
    hosts = {row.workers: row.hosts.split() for row in rows if row.measured}
    found, before, result = _by_workers(taken_apart, rows), set[str](), set[int]()
    for workers in sorted(hosts):
        by_host, known = found.get(workers, {}), before
        before = set(hosts[workers])
        if known and before <= set(by_host):
            own = {host: split.own_seconds({host: by_host[host]}) for host in before}
            usual = statistics.median(own[host] for host in known)
            result |= {workers} if all(own[host] < split.SLOWER * usual for host in before - known) else set()
    return result


def joules(folder: Path, rows: list[Timing]) -> dict[Trial, float]:
    """What a meter measured over each trial, where there was one."""
    found = {row.trial: trial_folder(folder, row.trial) / "energy.json" for row in rows if row.measured}
    return {trial: float(read_json(path)["joules"]) for trial, path in found.items() if path.is_file()}


def trial_folder(folder: Path, trial: Trial) -> Path:
    """Where a trial's files lie."""
    return folder / "trials" / sweep.run_name(folder.name, trial)


def _text(path: Path, text: str) -> bool:
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    write_text(path, text)
    return True


def _picture(path: Path, draw: Callable[[Path], None]) -> bool:
    """Draw beside the old one: equal bytes are no change."""
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
