"""The status of a run as a table, one line per worker; all runs as a table, one line per run."""

import datetime
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from control.common import project, text
from control.remote.worker_files import newest_generation, note
from control.runs.hosts import host_roles
from control.runs.launch import launches, under_way
from control.runs.launch.waiting_runs import Jobs
from control.runs.results import failure_text, metric_text, outcome, run_summary, step_profile, stragglers
from control.runs.results.time_left import Estimate
from control.runs.show import result_text
from trainer.data.spec import noun
from trainer.rundir.launch_record import Host, LaunchRecord
from trainer.rundir.layout import snapshots_policy
from trainer.rundir.phases import Phase
from trainer.supervision.restart_policy import may_go_on

NOTHING_KNOWN = Jobs()
UNCOLLECTED = "ended, not collected"
AWAY = ("gone", "unreachable")
"""States of a worker that may come back: its host restarts, or its supervisor begins a new session."""


def worker(
    records: list[dict[str, Any]], ended: dict[str, Any] | None, alive: bool, heard: float | None, unclear: str = "", script: bool = False
) -> dict[str, Any]:
    """A worker's status from its files; `unclear`: why its exit.json is invalid; `script`: it runs a script of the user's."""
    phases = [record["phase"] for record in records if record["kind"] in ("phase", "heartbeat")]
    steps = [record for record in records if record["kind"] == "steps"]
    epochs = [record for record in records if record["kind"] == "epoch"]
    generation, starts = newest_generation(records), sum(record["kind"] == "generation" for record in records)
    state = "running" if alive else "gone"
    if ended is not None:
        state = outcome.of_exit_code(ended["exit_code"], script)
    elif not records and not alive:
        state = "not started"
    return {
        "state": state,
        "phase": phases[-1] if phases else "-",
        "heard": heard,
        "note": (note(records) if phases and phases[-1] == Phase.QUEUED else "") if alive else unclear,
        "exit_code": ended["exit_code"] if ended else None,
        "steps": steps[-1] if steps else None,
        "epoch": epochs[-1] if epochs else None,
        "input_wait": _share([record["input_wait"] for record in steps[-50:]], [record["seconds"] for record in steps[-50:]]),
        "split": step_profile.median(step_profile.of_worker(records)),
        "straggler": stragglers.last(records),
        "generation": generation,
        # Of an asynchronous run, one worker starts again alone, in the same generation; one that was lost has missed some.
        "restarts": max(generation["number"], starts) - 1 if generation else 0,
    }


def left_alone(seen: list[dict[str, Any]], launched: list[str]) -> tuple[list[str], list[str]]:
    """Hosts whose worker ended early, and hosts whose worker is alive without them; the second is empty if the first is.

    Args:
        seen: by rank, what `worker` returns, with its `host`. Workers that ended well are not lost: the others still write their
            last files.
        launched: hosts of the run's last launch, by rank. If `seen` has other hosts, its files are of an older launch and both
            lists are empty.
    """
    if [one["host"] for one in seen] != launched:
        return [], []
    lost = [one["host"] for one in seen if one.get("exit_code") or one["state"] == "gone"]
    alive = [one["host"] for one in seen if one["state"] == "running"]
    return lost, alive if lost else []


def goes_on(seen: list[dict[str, Any]], launched: list[str], workers: int) -> bool:
    """Return whether enough workers of an elastic run are alive without the rest; arguments as of `left_alone`, then how many trained."""
    alive = [rank for rank, one in enumerate(seen) if one["state"] == "running"]
    return [one["host"] for one in seen] == launched and len(alive) < len(seen) and may_go_on(alive, workers, 1)


def waits(seen: list[dict[str, Any]], launched: list[str]) -> list[str]:
    """Hosts whose worker is away without an exit code while all others are alive; arguments as of `left_alone`."""
    away = [one["host"] for one in seen if one["state"] in AWAY]
    others = {one["state"] for one in seen if one["state"] not in AWAY}
    return away if [one["host"] for one in seen] == launched and others == {"running"} else []


def has_ended(seen: list[dict[str, Any]], launched: list[str], workers: int, steps: int, elastic: bool) -> bool:
    """Return whether a launch has made all its steps and ended well while no command watched; arguments as of `goes_on`."""
    done = [rank for rank, one in enumerate(seen) if one["state"] == "done" and (one["steps"] or {}).get("step") == steps]
    enough = may_go_on(done, workers, 1) if elastic else len(done) == len(seen)
    return [one["host"] for one in seen] == launched and enough and not any(one["state"] == "running" for one in seen)


def far(seen: list[dict[str, Any]], counts: dict[str, Any]) -> str:
    """The progress of the run's most advanced worker, as `epoch 12 of 60`; empty before the first step."""
    steps = [one["steps"] for one in seen if one.get("steps")]
    return f"epoch {max(record['epoch'] for record in steps)} of {counts['epochs']}" if steps and counts else ""


def _run_columns(called: str) -> list[str]:
    """The header of rows of `_run_row`, whose examples are `called` so."""
    return ["run", "state", "launched", "workers", "epochs", "steps", "training", f"{called}s/s", "best epoch"]


def _run_row(name: str, summary: dict[str, Any], launched: float | None) -> list[Any]:
    """A run as a row in a list; `launched` in seconds since 1970."""
    speed, seconds = summary.get("images_per_s"), summary.get("seconds_training")
    return [
        name,
        summary["state"] or "-",
        f"{datetime.datetime.fromtimestamp(launched):%Y-%m-%d %H:%M}" if launched else "-",
        summary.get("workers", "-"),
        summary.get("epochs_done", "-"),
        f"{summary['steps']:,}" if "steps" in summary else "-",
        text.duration(seconds) if seconds else "-",
        text.Number(speed, 0) if speed else "-",
        metric_text.best(summary.get("best"), summary.get("restored_by", "a callback")),
    ]


def listed(names: list[str]) -> str:
    """Runs as a table, with the last state that is known here."""
    records = {name: LaunchRecord.read(project.RUNS / name) for name in names}
    rows = [_run_row(name, run_summary.read_summary(project.RUNS / name), records[name].launched_at) for name in names]
    return text.table(_run_columns(_called(records.values())), rows)


def _called(records: Iterable[LaunchRecord]) -> str:
    return noun(*(record.dataset.get("spec") for record in records))


def all_runs(jobs: Jobs = NOTHING_KNOWN) -> str:
    """Every run that was launched or refused, the latest first, with its last known state; empty if there is none.

    `jobs`: what hosts say of their runs.
    """
    folders = {path.parent for name in ("cluster.json", "summary.json") for path in project.RUNS.glob(f"*/{name}")}
    records = {folder: LaunchRecord.read(folder) for folder in folders}
    begun = {folder: record.launched_at for folder, record in records.items()}
    when = {folder: begun[folder] or (folder / "summary.json").stat().st_mtime for folder in folders}
    latest_first = sorted(folders, key=lambda folder: (when[folder], folder.name), reverse=True)
    elsewhere = [run for run in jobs.states if project.RUNS / run not in begun and not _is_ours(run)]
    rows = [
        _run_row(f"{run} ({'deleted' if under_way.has(run) else 'from elsewhere'})", {"state": jobs.states[run]}, None) for run in elsewhere
    ]
    rows += [_run_row(folder.name, _last_known(folder, jobs), begun[folder]) for folder in latest_first]
    called = _called(records.values())
    hints = [
        f"{run}: its folder here was deleted; to make it again: ansible-playbook status.yml -e run={run}"
        if under_way.has(run)
        else f"{run}: to stop it: ansible-playbook stop.yml -e run={run}"
        for run in elsewhere
    ]
    return "\n".join(["Runs, the latest first", text.table(_run_columns(called), rows), *hints]) if rows else ""


def uncollected(jobs: Jobs) -> list[str]:
    """Names of the runs that have ended on their hosts, and whose results are not here, by name."""
    return [name for name in project.runs() if _last_known(project.RUNS / name, jobs).get("state") == UNCOLLECTED]


def _is_ours(run: str) -> bool:
    """Return whether a run that hosts report is a trial of a sweep here, or a short run of another command's."""
    places = [*project.SWEEPS.glob(f"*/{project.TRIALS}"), *project.PRIVATE.glob("*")]
    return any((place / run).is_dir() for place in places)


def _last_known(folder: Path, jobs: Jobs) -> dict[str, object]:
    """The summary of a run. An unwatched run goes on, or ends, without reporting to this machine."""
    summary, record = run_summary.read_summary(folder), LaunchRecord.read(folder)
    if folder.name in jobs.states:
        return summary | {"state": jobs.states[folder.name]}
    if job := launches.uncollected_job(record):
        return summary | {"state": f"job {job} of Slurm, not collected"}
    ended = record and not launches.is_begun(folder) and jobs.has_ended(folder.name, [host.name for host in record.posts])
    if summary["state"] in (None, "RUNNING") and ended:
        return summary | {"state": UNCOLLECTED}
    if summary["state"] is None:
        return {"state": "not collected"}
    if summary["state"] == "RUNNING":
        seen = datetime.datetime.fromtimestamp((folder / "summary.json").stat().st_mtime)
        return summary | {"state": f"RUNNING at {seen:%H:%M}, {seen:%Y-%m-%d}"}
    return summary


def _share(parts: list[float], wholes: list[float]) -> float | None:
    return sum(parts) / sum(wholes) if wholes and sum(wholes) > 0 else None


def table(
    run: str,
    state: str | None,
    hosts: list[Host],
    seen: list[dict[str, Any]],
    counts: dict[str, Any],
    called: str = "image",
    jobs: Jobs = NOTHING_KNOWN,
) -> str:
    """A run's status: its progress, one line per worker, and the phases of a step if known; a script's run has no `counts`.

    `called`: what an example is called; `jobs`: what the hosts say of their runs.
    """
    by_host, row = {look["host"]: look for look in seen if look}, _row if counts else _script_row
    members = _members(seen) or [host.name for host in hosts]
    looks = {host.name: by_host.get(host.name, {"state": "unreachable"}) for host in hosts}
    if not counts:
        # A script has no records that say it.
        looks = {name: {**look, "note": jobs.note(run, name) or look.get("note", "")} for name, look in looks.items()}
    rows = [row(host, looks[host.name] if host.name in members else _lost(looks[host.name])) for host in hosts]
    chief = by_host.get(members[0], {})
    restarts, columns = [look.get("restarts", 0) for look in looks.values()], list(COLUMNS if counts else SCRIPT_COLUMNS)
    if any(restarts):
        for cells, number in zip([columns, *rows], ["restarts", *restarts], strict=True):
            cells.insert(len(cells) - 1, number)
    if roles := host_roles.roles(hosts):
        for cells, role in zip([columns, *rows], ["role", *roles], strict=True):
            cells.insert(2, role)
    again = f"; workers started again {text.count(max(restarts), 'time')} in this launch" if any(restarts) else ""
    lines = [
        f"{run}: {_overall(state, list(by_host.values()), jobs.states.get(run, 'RUNNING'))}{again}",
        *_progress(chief, counts, called, snapshots_policy(project.RUNS / run)[1]),
        "",
        text.table(columns, rows),
    ]
    phases = step_profile.shown({host.name: split for host in hosts if (split := by_host.get(host.name, {}).get("split"))})
    slow = stragglers.sentence(chief["straggler"], [host.name for host in hosts]) if chief.get("straggler") else ""
    return "\n".join([*lines, *(["", phases] if phases else []), *([f"  {slow}"] if slow else [])])


def _members(seen: list[dict[str, Any]]) -> list[str]:
    """Names of the hosts that train now, by rank; empty if no worker is alive or none has said."""
    generations = [look["generation"] for look in seen if look and look["state"] == "running" and look.get("generation")]
    return list(max(generations, key=lambda one: one["number"])["hosts"]) if generations else []


def _lost(look: dict[str, Any]) -> dict[str, Any]:
    """A look at a host that the other hosts go on without, with that note."""
    note = SPARE if look.get("phase") == Phase.STANDING_BY else f"{outcome.LOST}: the others go on without it"
    return {**look, "note": f"{note}; {look['note']}" if look.get("note") else note, "exit_code": None}


SPARE = "spare: takes the place of a lost host"
COLUMNS = ("rank", "host", "state", "phase", "step", "waits for input", "heard", "note")
SCRIPT_COLUMNS = ("rank", "host", "state", "last output", "note")


def _overall(recorded: str | None, seen: list[dict[str, Any]], alive: str = "RUNNING") -> str:
    """The run's state: `alive` while one of its workers is, otherwise as recorded at the end."""
    if any(look["state"] == "running" for look in seen):
        return alive
    if recorded not in (None, "RUNNING"):
        return str(recorded)
    if seen and all(look["state"] == "done" for look in seen):
        return "SUCCEEDED (results not collected yet)"
    return "ended without being watched; continue it with train.yml"


def _row(host: Host, look: dict[str, Any]) -> list[Any]:
    steps, heard, wait = look.get("steps"), look.get("heard"), look.get("input_wait")
    alive = look["state"] == "running"
    note = _note(look) or ("silent" if alive and heard is not None and heard > 15 else "")
    return [
        host.rank,
        host.name,
        look["state"],
        look.get("phase", "-") if alive else "-",
        f"{steps['step']:,}" if steps else "-",
        f"{wait:.1%}" if wait is not None else "-",
        f"{heard:.0f} s ago" if heard is not None and alive else "-",
        note,
    ]


def _script_row(host: Host, look: dict[str, Any]) -> list[Any]:
    heard = look.get("heard")
    return [host.rank, host.name, look["state"], f"{text.duration(heard)} ago" if heard is not None else "-", _note(look)]


def _note(look: dict[str, Any]) -> str:
    code = look.get("exit_code")
    return f"exit code {code}{failure_text.signal_name(code)}" if code else str(look.get("note", ""))


def _progress(chief: dict[str, Any], counts: dict[str, Any], called: str, asked: str | None) -> list[str]:
    if not chief.get("steps"):
        return []
    left = Estimate(counts).left(chief["steps"]["step"], chief["steps"]["images_per_s"])
    return ["  " + result_text.progress(chief["steps"], counts, chief.get("epoch"), left, called, asked)]
