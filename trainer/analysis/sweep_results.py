"""A sweep's results from its files: analysis.md, pictures, summary.json. Written anew each time, and only where something changed."""

import tempfile
from collections.abc import Callable
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


def conclude(folder: Path, mbit_s: float | None = None, watts_per_node: float | None = None) -> Results:
    """Analyse what was measured so far, write all results.

    Args:
        folder: the sweep's, with timings.csv and summary.json.
        mbit_s: measured bandwidth of the slowest link, when it is known.
        watts_per_node: power of a host while it trains, when it is known.

    Raises:
        ConfigError: nothing was measured yet.
    """
    rows, record = read(folder / "timings.csv"), dict(read_json(folder / "summary.json"))
    if not any(row.measured for row in rows):
        failed = f" ({len(rows)} trials failed; their output is in {folder.name}/logs)" if rows else ""
        raise ConfigError(
            f"sweep={folder.name}: nothing is measured yet{failed}; measure: ansible-playbook sweep.yml -e sweep={folder.name}"
        )
    extras = Extras(mbit_s, watts_per_node, joules(folder, rows), phases(folder, rows))
    found = studies(rows, works(record), folder.name)
    changed = [_text(folder / "analysis.md", advice_text.analysis(found, rows, extras))]
    changed += [_picture(folder / name, draw) for name, draw in pictures(rows, found, extras).items()]
    changed.append(_summary(folder / "summary.json", record, rows, as_dict(found, rows, extras)))
    if advice_text.about_saved_states(rows):
        answer = advice_text.saved_states(rows)
    else:
        answer = "\n\n".join(advice_text.answer(one, extras) for one in found)
    return Results(rows, found, answer, any(changed))


def works(record: dict[str, Any]) -> list[Work]:
    """What a step has to do at each scaling."""
    batches = {WEAK: record["batch_size"], STRONG: record["global_batch"]}
    return [Work(scaling, batch, record["gradient_bytes"]) for scaling, batch in batches.items()]


def pictures(rows: list[Timing], found: list[Study], extras: Extras) -> dict[str, Callable[[Path], None]]:
    """File name to a function that draws it."""
    made: dict[str, Callable[[Path], None]] = {
        "time_median.png": lambda path: plots.time_median(rows, path),
        "time_mean.png": lambda path: plots.time_mean(rows, path),
    }
    for one in found:
        suffix = "" if one is found[0] else f"_{one.work.scaling}"
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


def phases(folder: Path, rows: list[Timing]) -> dict[int, dict[str, dict[str, float]]]:
    """Milliseconds of every phase of a step by number of workers and host: the median over all samples of all trials."""
    samples: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        if row.measured:
            for host, records in split.read(trial_folder(folder, row.trial)).items():
                samples.setdefault(row.workers, {}).setdefault(host, []).extend(records)
    return {workers: split.medians(hosts) for workers, hosts in sorted(samples.items())}


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
