"""The status of a run as a table with one line per worker; all runs as a table with one line per run."""

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from control.common import project, text
from control.remote.worker_files import newest_generation, note
from control.runs.hosts import host_roles
from control.runs.launch import launches, under_way
from control.runs.launch.waiting_runs import Jobs
from control.runs.results import metric_text, outcome, step_profile, stragglers
from control.runs.results.run_folder import RunFolder
from control.runs.results.summary import Summary
from control.runs.show import result_text
from trainer.data.spec import noun
from trainer.rundir.launch_record import Host, LaunchRecord
from trainer.rundir.phases import Phase
from trainer.supervision.restart_policy import may_go_on

NOTHING_KNOWN = Jobs()
UNCOLLECTED = "ended, not collected"
AWAY = ("gone", "unreachable")
"""States of a worker that may come back because its host restarts, or its supervisor begins a new session."""


@dataclass(frozen=True)
class WorkerSeen:
    """Observation of a run's worker at one moment."""

    host: str
    state: str
    phase: str = "-"
    heard: float | None = None
    """Age of its last record in seconds."""
    note: str = ""
    exit_code: int | None = None
    steps: dict[str, Any] | None = None
    """Last record of steps."""
    epoch: dict[str, Any] | None = None
    """Last record of an epoch."""
    input_wait: float | None = None
    """Share of the last calls' time that the worker spent waiting for input."""
    split: dict[str, float] = field(default_factory=dict)
    """Median seconds of each part of a step."""
    straggler: dict[str, Any] | None = None
    generation: dict[str, Any] | None = None
    """Last record of a generation."""
    restarts: int = 0
    log: list[str] | None = None
    """Last lines of its log, if they were read."""

    @classmethod
    def of(
        cls,
        host: str,
        records: list[dict[str, Any]],
        ended: dict[str, Any] | None,
        alive: bool,
        heard: float | None,
        unclear: str = "",
        script: bool = False,
    ) -> "WorkerSeen":
        """Observe a worker through its files; `unclear`: the fault of an invalid exit.json; `script`: True for the user's script."""
        phases = [record["phase"] for record in records if record["kind"] in ("phase", "heartbeat")]
        steps = [record for record in records if record["kind"] == "steps"]
        epochs = [record for record in records if record["kind"] == "epoch"]
        generation, starts = newest_generation(records), sum(record["kind"] == "generation" for record in records)
        state = "running" if alive else "gone"
        if ended is not None:
            state = outcome.of_exit_code(ended["exit_code"], script)
        elif not records and not alive:
            state = "not started"
        return cls(
            host=host,
            state=state,
            phase=phases[-1] if phases else "-",
            heard=heard,
            note=(note(records) if phases and phases[-1] == Phase.QUEUED else "") if alive else unclear,
            exit_code=ended["exit_code"] if ended else None,
            steps=steps[-1] if steps else None,
            epoch=epochs[-1] if epochs else None,
            input_wait=_share([record["input_wait"] for record in steps[-50:]], [record["seconds"] for record in steps[-50:]]),
            split=step_profile.median(step_profile.of_worker(records)),
            straggler=stragglers.last(records),
            generation=generation,
            # In an asynchronous run, a worker starts again alone, in the same generation; a lost worker has missed generations.
            restarts=max(generation["number"], starts) - 1 if generation else 0,
        )


@dataclass(frozen=True)
class Looks:
    """Observations of the workers of a run's last launch."""

    seen: Sequence[WorkerSeen]
    """Observations by rank."""
    launched: Sequence[str]
    """Hosts of the launch, by rank. If they differ from the observed ones, the files there belong to an older launch."""
    workers: int
    """Number of the hosts that trained."""

    def in_state(self, *states: str) -> list[str]:
        """Hosts whose worker is in one of these states."""
        return [one.host for one in self.seen if one.state in states]

    @property
    def _apply(self) -> bool:
        return [one.host for one in self.seen] == list(self.launched)

    def left_alone(self) -> tuple[list[str], list[str]]:
        """Hosts whose worker ended early, and hosts whose worker still lives; the second list is empty if the first is.

        A worker that ended well is not lost: the other workers are still writing their last files.
        """
        if not self._apply:
            return [], []
        lost = [one.host for one in self.seen if one.exit_code or one.state == "gone"]
        return lost, self.in_state("running") if lost else []

    def goes_on(self) -> bool:
        """Return whether enough workers of an elastic run are alive without the rest."""
        alive = [rank for rank, one in enumerate(self.seen) if one.state == "running"]
        return self._apply and len(alive) < len(self.seen) and may_go_on(alive, self.workers, 1)

    def waits_for(self) -> list[str]:
        """Hosts whose worker is away without an exit code while all others are alive."""
        others = {one.state for one in self.seen if one.state not in AWAY}
        return self.in_state(*AWAY) if self._apply and others == {"running"} else []

    def has_ended(self, steps: int, elastic: bool) -> bool:
        """Return whether the launch has made all its steps and ended well while no command watched."""
        done = [rank for rank, one in enumerate(self.seen) if one.state == "done" and (one.steps or {}).get("step") == steps]
        enough = may_go_on(done, self.workers, 1) if elastic else len(done) == len(self.seen)
        return self._apply and enough and not self.in_state("running")

    def progress(self, counts: dict[str, Any]) -> str:
        """Progress of the most advanced worker, as `epoch 12 of 60`; empty before the first step."""
        steps = [one.steps for one in self.seen if one.steps]
        return f"epoch {max(record['epoch'] for record in steps)} of {counts['epochs']}" if steps and counts else ""


def _run_columns(called: str) -> list[str]:
    """Header for the rows of `_run_row`; `called`: noun for an example."""
    return ["run", "state", "launched", "workers", "epochs", "steps", "training", f"{called}s/s", "best epoch"]


def _run_row(name: str, summary: Summary, launched: float | None) -> list[Any]:
    """A run as a row in a list; `launched` in seconds since 1970."""
    speed, seconds = summary.images_per_s, summary.seconds_training
    return [
        name,
        summary.state or "-",
        f"{datetime.datetime.fromtimestamp(launched):%Y-%m-%d %H:%M}" if launched else "-",
        "-" if summary.workers is None else summary.workers,
        "-" if summary.epochs_done is None else summary.epochs_done,
        "-" if summary.steps is None else f"{summary.steps:,}",
        text.duration(seconds) if seconds else "-",
        text.Number(speed, 0) if speed else "-",
        metric_text.best(summary.best, summary.restored_by),
    ]


def listed(names: list[str]) -> str:
    """Table of runs, with the last state known on this machine."""
    runs = [RunFolder(project.RUNS / name) for name in names]
    records = [run.record for run in runs]
    rows = [_run_row(run.name, run.summary, record.launched_at) for run, record in zip(runs, records, strict=True)]
    return text.table(_run_columns(_called(records)), rows)


def _called(records: Iterable[LaunchRecord]) -> str:
    return noun(*(record.dataset.get("spec") for record in records))


def all_runs(jobs: Jobs = NOTHING_KNOWN) -> str:
    """Table of all launched or refused runs, the latest first, with the last known states; empty if there are none.

    `jobs`: runs that hosts report.
    """
    runs = {RunFolder(path.parent) for name in ("cluster.json", "summary.json") for path in project.RUNS.glob(f"*/{name}")}
    records = {run: run.record for run in runs}
    begun = {run: record.launched_at for run, record in records.items()}
    when = {run: begun[run] or (run.path / "summary.json").stat().st_mtime for run in runs}
    latest_first = sorted(runs, key=lambda run: (when[run], run.name), reverse=True)
    known = {run.name for run in runs}
    elsewhere = [run for run in jobs.states if run not in known and not _is_ours(run)]
    rows = [
        _run_row(f"{run} ({'deleted' if under_way.has(run) else 'from elsewhere'})", Summary(state=jobs.states[run]), None)
        for run in elsewhere
    ]
    rows += [_run_row(run.name, _last_known(run, jobs), begun[run]) for run in latest_first]
    called = _called(records.values())
    hints = [
        f"{run}: its folder here was deleted; to make it again: ansible-playbook status.yml -e run={run}"
        if under_way.has(run)
        else f"{run}: to stop it: ansible-playbook stop.yml -e run={run}"
        for run in elsewhere
    ]
    return "\n".join(["Runs, the latest first", text.table(_run_columns(called), rows), *hints]) if rows else ""


def uncollected(jobs: Jobs) -> list[str]:
    """Names, sorted, of the runs that have ended on their hosts and whose results are not here."""
    return [name for name in project.runs() if _last_known(RunFolder(project.RUNS / name), jobs).state == UNCOLLECTED]


def _is_ours(run: str) -> bool:
    """Return whether a reported run is a trial of a sweep here, or another command's short run."""
    places = [*project.SWEEPS.glob(f"*/{project.TRIALS}"), *project.PRIVATE.glob("*")]
    return any((place / run).is_dir() for place in places)


def _last_known(run: RunFolder, jobs: Jobs) -> Summary:
    """The summary of a run, with a text on its state: an unwatched run may have continued, or ended unobserved."""
    summary, record, state = run.summary, run.record, None
    ended = record and not launches.is_begun(run.path) and jobs.has_ended(run.name, [host.name for host in record.posts])
    if run.name in jobs.states:
        state = jobs.states[run.name]
    elif job := launches.uncollected_job(record):
        state = f"job {job} of Slurm, not collected"
    elif summary.under_way and ended:
        state = UNCOLLECTED
    elif summary.state is None:
        state = "not collected"
    elif summary.state == "RUNNING":
        seen = datetime.datetime.fromtimestamp((run.path / "summary.json").stat().st_mtime)
        state = f"RUNNING at {seen:%H:%M}, {seen:%Y-%m-%d}"
    return replace(summary, state=state) if state else summary


def _share(parts: list[float], wholes: list[float]) -> float | None:
    return sum(parts) / sum(wholes) if wholes and sum(wholes) > 0 else None


def table(run: RunFolder, hosts: Sequence[Host], seen: Sequence[WorkerSeen], counts: dict[str, Any], jobs: Jobs = NOTHING_KNOWN) -> str:
    """Status of a run: its progress, one line per worker, and the phases of a step if known; a script's run has no `counts`.

    `jobs`: runs that the hosts report.
    """
    by_host, row = {look.host: look for look in seen}, _row if counts else _script_row
    members = _members(seen) or [host.name for host in hosts]
    looks = {host.name: by_host.get(host.name, WorkerSeen(host.name, "unreachable")) for host in hosts}
    if not counts:
        # A script has no records of its progress.
        looks = {name: replace(look, note=jobs.note(run.name, name) or look.note) for name, look in looks.items()}
    rows = [row(host, looks[host.name] if host.name in members else _lost(looks[host.name])) for host in hosts]
    chief = by_host.get(members[0], WorkerSeen(members[0], "unreachable"))
    restarts, columns = [look.restarts for look in looks.values()], list(COLUMNS if counts else SCRIPT_COLUMNS)
    if any(restarts):
        for cells, number in zip([columns, *rows], ["restarts", *restarts], strict=True):
            cells.insert(len(cells) - 1, number)
    if roles := host_roles.roles(hosts):
        for cells, role in zip([columns, *rows], ["role", *roles], strict=True):
            cells.insert(2, role)
    again = f"; workers started again {text.count(max(restarts), 'time')} in this launch" if any(restarts) else ""
    lines = [
        f"{run.name}: {_overall(run.summary.state, list(by_host.values()), jobs.states.get(run.name, 'RUNNING'))}{again}",
        *_progress(chief, counts, run),
        "",
        text.table(columns, rows),
    ]
    phases = step_profile.profile_text({host.name: split for host in hosts if (split := looks[host.name].split)})
    slow = stragglers.sentence(chief.straggler, [host.name for host in hosts]) if chief.straggler else ""
    return "\n".join([*lines, *(["", phases] if phases else []), *([f"  {slow}"] if slow else [])])


def _members(seen: Sequence[WorkerSeen]) -> list[str]:
    """Names of the hosts that train now, by rank; empty if no worker is alive or none has recorded it."""
    generations = [look.generation for look in seen if look.state == "running" and look.generation]
    return list(max(generations, key=lambda one: one["number"])["hosts"]) if generations else []


def _lost(look: WorkerSeen) -> WorkerSeen:
    """Observation of a host without which the others go on, with a note on that."""
    note = SPARE if look.phase == Phase.STANDING_BY else f"{outcome.LOST}: the others go on without it"
    return replace(look, note=f"{note}; {look.note}" if look.note else note, exit_code=None)


SPARE = "spare: takes the place of a lost host"
COLUMNS = ("rank", "host", "state", "phase", "step", "waits for input", "heard", "note")
SCRIPT_COLUMNS = ("rank", "host", "state", "last output", "note")


def _overall(recorded: str | None, seen: Sequence[WorkerSeen], alive: str = "RUNNING") -> str:
    """The run's state: the text `alive` while any of its workers runs, otherwise the state recorded at the end."""
    if any(look.state == "running" for look in seen):
        return alive
    if recorded not in (None, "RUNNING"):
        return str(recorded)
    if seen and all(look.state == "done" for look in seen):
        return "SUCCEEDED (results not collected yet)"
    return "ended without being watched; continue it with train.yml"


def _row(host: Host, look: WorkerSeen) -> list[Any]:
    steps, heard, wait, alive = look.steps, look.heard, look.input_wait, look.state == "running"
    note = _note(look) or ("silent" if alive and heard is not None and heard > 15 else "")
    return [
        host.rank,
        host.name,
        look.state,
        look.phase if alive else "-",
        f"{steps['step']:,}" if steps else "-",
        f"{wait:.1%}" if wait is not None else "-",
        f"{heard:.0f} s ago" if heard is not None and alive else "-",
        note,
    ]


def _script_row(host: Host, look: WorkerSeen) -> list[Any]:
    heard = f"{text.duration(look.heard)} ago" if look.heard is not None else "-"
    return [host.rank, host.name, look.state, heard, _note(look)]


def _note(look: WorkerSeen) -> str:
    return f"exit code {look.exit_code}{outcome.signal_name(look.exit_code)}" if look.exit_code else look.note


def _progress(chief: WorkerSeen, counts: dict[str, Any], run: RunFolder) -> list[str]:
    if not chief.steps:
        return []
    progress = result_text.RunProgress(counts, run.noun, run.monitor)
    if chief.epoch:
        progress.end_epoch(chief.epoch)
    return [f"  {progress.line(chief.steps)}"]
