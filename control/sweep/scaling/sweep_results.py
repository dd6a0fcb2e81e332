"""A sweep's results from its files: analysis.md, pictures, summary.json. Recomputed each time, written only if changed."""

import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.campaign.store import SUMMARY
from control.campaign.timings import FILE, STRONG, WEAK, Timing, Trial, read
from control.common import host_names, text
from control.common.host_names import on_one_machine
from control.common.written_files import put_changed
from control.runs.results import run_plots, step_profile
from control.sweep.scaling import advice_text, scaling_plots
from control.sweep.scaling.advice import Extras, Findings, Study, groups
from control.sweep.scaling.fitting import Work, again
from trainer.common.errors import ConfigError
from trainer.common.files import read_json, write_json, write_text
from trainer.reduction.cost_model import TENSORFLOW

MOST_BARS = 30
"""Maximum number of bars in one picture."""


@dataclass(frozen=True)
class Results:
    """The results of a sweep."""

    found: Findings
    answer: str
    """The answer in words, for every measured scaling."""
    following: tuple[str, str]
    """The next step, and its one command."""
    changed: bool
    """True if any file differs from before."""

    def shown(self, folder: str) -> str:
        """The end of a sweep for the terminal: one row per number of workers, the answer, the paths of the files, the next command."""
        tables = [_measured(one) for one in self.found.studies]
        failed = [row.trial.label for row in self.found.timings if not row.measured]
        lost = f"failed twice: {'; '.join(failed)} (output: {folder}/logs); the same command tries them again" if failed else ""
        # The command follows below; shown twice, it would look like two commands.
        answer = self.answer.replace("**", "").replace(f": `{self.following[1]}`", ", as below.")
        where = f"results  {folder}: timings.csv, pictures, and analysis.md, which says why"
        parts = [*tables, answer, lost, where, text.next_commands([self.following])]
        return "\n\n".join(part for part in parts if part)


Samples = dict[int, dict[str, list[dict[str, Any]]]]
"""Records of profiled steps, by number of workers and host."""


def conclude(folder: Path, watts_per_node: float | None = None, typed: Callable[[str], str] = lambda text: text) -> Results:
    """Analyse all measurements so far, write all results.

    Args:
        folder: the sweep's folder, with timings.csv and summary.json.
        watts_per_node: power of a host during training, if known.
        typed: completes commands in analysis.md and in the answer for the user, as with `-i INVENTORY`.

    Raises:
        ConfigError: nothing was measured yet.
    """
    rows, record = read(folder / FILE), dict(read_json(folder / SUMMARY))
    if not any(row.measured for row in rows):
        failed = f" ({len(rows)} trials failed; their output is in {folder.name}/logs)" if rows else ""
        raise ConfigError(
            f"sweep={folder.name}: nothing is measured yet{failed}; measure: ansible-playbook sweep.yml -e sweep={folder.name}"
        )
    hosts = record.get("hosts", [])
    studies, split = [], None
    for work, group in groups(rows, _works(record)):
        profiled = _samples(folder, group)
        timed = _timed_work(record, work, max(row.workers for row in group))
        own = timed or _own_work(profiled, group)
        studies.append(Study.of_rows(group, work, folder.name, own, _quick(profiled, group), hosts, bool(timed)))
        if split is None and studies[-1].rows:
            split = {workers: step_profile.medians(by_host) for workers, by_host in profiled.items()}
    extras = Extras(record.get("mbit_s"), watts_per_node, _joules(folder, rows), split, on_one_machine(hosts))
    measured = sum(row.measured for row in rows)
    found = Findings(studies, rows, extras)
    counted = {"trials_measured": measured, "trials_failed": len(rows) - measured, "analysis": found.as_dict()}
    with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as fresh:
        write_text(Path(fresh, "analysis.md"), typed(advice_text.analysis(found)))
        write_json(Path(fresh, SUMMARY), {**record, **counted})
        _draw(Path(fresh), found)
        changed = put_changed(Path(fresh), folder)
    label, command = _following(found, folder.name)
    return Results(found, typed(advice_text.answers(found)), (label, typed(command)), bool(changed))


def _following(found: Findings, sweep: str) -> tuple[str, str]:
    """The next step: measure the trials that an answer lacks, or train with the answer; never a measurement that can't help."""
    rows = found.timings
    if found.about_saved_states:
        single = min(Counter(row.checkpoint_every for row in rows if row.measured).values()) < 2
        return ("measure more", again(rows, sweep, 3)) if single else _train(sweep, max(row.workers for row in rows if row.measured))
    if lacking := next((one for one in found.studies if one.command), None):
        return "measure for an answer", lacking.command
    answered = [one for one in found.studies if one.advice]
    if doubtful := next((one for one in answered if one.advice and one.advice.doubtful), None):
        return "measure more", again(doubtful.rows, sweep, max(row.repeat for row in doubtful.rows) + 2)
    one = answered[0] if answered else next(one for one in found.studies if one.rows)
    return _train(sweep, one.to_train())


def _train(sweep: str, workers: int) -> tuple[str, str]:
    return "train with it", f"ansible-playbook train.yml -e config=sweeps/{sweep}/config.yml -e workers={workers}"


def _works(record: dict[str, Any]) -> list[Work]:
    """The work of a step at each scaling."""
    batches = {WEAK: record["batch_size"], STRONG: record["global_batch"]}
    sent = record.get("sent_bytes", record["gradient_bytes"])
    how = (
        record.get("train_images", 0),
        record.get("transport", TENSORFLOW),
        tuple(record.get("sums", ())),
        sent < record["gradient_bytes"],
        record.get("called", "image"),
    )
    return [Work(scaling, batch, sent, *how) for scaling, batch in batches.items()]


def _draw(folder: Path, found: Findings) -> None:
    """Draw all pictures into a folder; none for a scaling without measurements."""
    rows, split = found.timings, found.extras.split
    for centre in ("median", "mean"):
        scaling_plots.times(rows, centre, folder / f"time_{centre}.png")
    drawn = [one for one in found.studies if one.rows]
    for one in drawn:
        suffix = "" if one is drawn[0] else f"_{one.work.scaling}"
        for name, quantity in scaling_plots.RATES.items():
            scaling_plots.rates(one.rows, one.work, one.fit, quantity, folder / f"{name}{suffix}.png")
    if len({row.checkpoint_every for row in rows if row.measured}) > 1:
        scaling_plots.checkpoints(rows, folder / "checkpoints.png")
    if split:
        run_plots.split(_profile_bars(split), folder / "split.png", "Medians of the steps that were profiled")


def _profile_bars(by_workers: Mapping[int, Mapping[str, Mapping[str, float]]]) -> dict[str, Mapping[str, float]]:
    """One named bar per host and number of workers; if there are too many, only the slowest host at each number."""
    slowest = sum(len(hosts) for hosts in by_workers.values()) > MOST_BARS
    bars: dict[str, Mapping[str, float]] = {}
    for workers, hosts in sorted(by_workers.items()):
        shown = [max(hosts, key=lambda host: step_profile.own_work(dict(hosts[host])))] if slowest else list(hosts)
        note = ", slowest" if slowest and workers > 1 else ""
        bars |= {f"{text.count(workers, 'worker')}: {host}{note}": hosts[host] for host in shown}
    return bars


def _samples(folder: Path, rows: Sequence[Timing]) -> Samples:
    """Profiled steps of these trials together; numbers of workers without any are left out.

    Args:
        folder: the sweep's folder.
        rows: trials of one group (same scaling, epochs, checkpoint_every): steps of different batches can't be mixed.
    """
    pooled: Samples = {}
    for row in sorted((row for row in rows if row.measured), key=lambda row: row.workers):
        for host, records in step_profile.read_profiles(_trial_folder(folder, row.trial)).items():
            pooled.setdefault(row.workers, {}).setdefault(host, []).extend(records)
    return pooled


def _own_work(profiled: Samples, rows: Sequence[Timing]) -> dict[int, float]:
    """Seconds of a step's own work by number of workers, of the slowest host in these trials.

    A number is left out if any of its hosts has no samples, because that host may be the slowest.
    """
    hosts = {row.workers: set(row.hosts.split()) for row in rows if row.measured}
    return {workers: step_profile.own_seconds(by_host) for workers, by_host in profiled.items() if hosts[workers] <= set(by_host)}


def times(record: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Results of `trainer steptime` by host, oldest first; earlier versions kept only one."""
    return {host: one if isinstance(one, list) else [one] for host, one in record.get("timed", {}).items()}


def _timed_work(record: Mapping[str, Any], work: Work, workers: int) -> dict[int, float]:
    """Seconds of a step's own work for 1 to `workers` workers, from each host's step, timed alone before and after the trials.

    The mean of both times counts, because a machine that becomes slower does so during the trials. Empty if a host was not timed or, with
    strong scaling, not with its share of a step.
    """
    names, method = host_names.label_names(record.get("hosts", []))[:workers], record.get("reduction", "")
    timed = {host: [one for one in answers if method in one["methods"]] for host, answers in times(record).items()}
    if work.scaling == STRONG or not names or not all(timed.get(name) for name in names):
        return {}
    each = {name: statistics.fmean(one["methods"][method]["step_seconds"] for one in timed[name]) for name in names}
    alone = {1: statistics.fmean(one["step_seconds"] for one in timed[names[0]])}
    return alone | {n: step_profile.decisive({name: each[name] for name in names[:n]}) for n in range(2, len(names) + 1)}


def _quick(profiled: Samples, rows: Sequence[Timing]) -> set[int]:
    """Numbers of workers whose newest hosts are no slower than the others: if steps grow from there on, no host is the cause."""
    hosts = {row.workers: set(row.hosts.split()) for row in rows if row.measured}
    before, result = set[str](), set[int]()
    for workers in sorted(hosts):
        by_host, earlier = profiled.get(workers, {}), before
        before = hosts[workers]
        if earlier and before <= set(by_host):
            own = {host: step_profile.own_seconds({host: by_host[host]}) for host in before}
            usual = statistics.median(own[host] for host in earlier)
            result |= {workers} if all(own[host] < step_profile.SLOWER * usual for host in before - earlier) else set()
    return result


def _joules(folder: Path, rows: list[Timing]) -> dict[Trial, float]:
    """Metered energy of each trial, if there was a meter."""
    paths = {row.trial: _trial_folder(folder, row.trial) / "energy.json" for row in rows if row.measured}
    return {trial: float(read_json(path)["joules"]) for trial, path in paths.items() if path.is_file()}


def _trial_folder(folder: Path, trial: Trial) -> Path:
    """Folder of a trial's files."""
    return folder / "trials" / trial.run_name(folder.name)


def _measured(one: Study) -> str:
    header = ["workers", "trials", "end to end s", "least to most", "training s", one.work.rate, "speedup", "efficiency"]
    rows = []
    for row in one.measured():
        ends = [timing.seconds_end_to_end or 0.0 for timing in one.of(row["workers"])]
        spread = f"{min(ends):,.1f} to {max(ends):,.1f}" if len(ends) > 1 else "-"
        rows.append(
            [
                row["workers"],
                row["trials"],
                text.Number(row["seconds_end_to_end"]["median"], 1),
                spread.rjust(len("least to most")),
                text.Number(row["seconds_training"]["median"], 1),
                text.Number(row["images_per_s"]["median"], 0),
                text.Number(row["speedup"], 2),
                f"{row['efficiency']:.0%}".rjust(len("efficiency")),
            ]
        )
    return f"Medians, {one.work.scaling} scaling\n{text.table(header, rows)}"
