"""The status of a run as a table: one line a worker."""

import datetime
from typing import Any

from trainer.analysis import outcome, split, text
from trainer.analysis.progress import Estimate


def worker(records: list[dict[str, Any]], ended: dict[str, Any] | None, alive: bool, heard: float | None) -> dict[str, Any]:
    """What the files of one worker say of it."""
    phases = [record["phase"] for record in records if record["kind"] in ("phase", "heartbeat")]
    steps = [record for record in records if record["kind"] == "steps"]
    epochs = [record for record in records if record["kind"] == "epoch"]
    state = "running" if alive else "gone"
    if ended is not None:
        state = outcome.of_exit_code(ended["exit_code"])
    elif not records and not alive:
        state = "not started"
    return {
        "state": state,
        "phase": phases[-1] if phases else "-",
        "heard": heard,
        "exit_code": ended["exit_code"] if ended else None,
        "steps": steps[-1] if steps else None,
        "epoch": epochs[-1] if epochs else None,
        "input_wait": _share([record["input_wait"] for record in steps[-50:]], [record["seconds"] for record in steps[-50:]]),
        "split": split.median(split.of_worker(records)),
    }


def left_alone(seen: list[dict[str, Any]], launched: list[str]) -> tuple[list[str], list[str]]:
    """Hosts whose worker ended before its time, and hosts whose worker is alive without them; the latter none without the former.

    Args:
        seen: what `worker` says of each by rank, and its `host`. One that ended well is none: the others write their last files.
        launched: hosts of the run's last launch, by rank. Of others, files tell of an older one: then nobody is left alone.
    """
    if [one["host"] for one in seen] != launched:
        return [], []
    lost = [one["host"] for one in seen if one.get("exit_code") or one["state"] == "gone"]
    alive = [one["host"] for one in seen if one["state"] == "running"]
    return lost, alive if lost else []


RUN_COLUMNS = ("run", "state", "launched", "workers", "epochs", "steps", "time", "images/s", "best val accuracy")


def run_row(name: str, summary: dict[str, Any], launched: float | None) -> list[Any]:
    """A run as a line among others; `launched` in seconds since 1970."""
    best, speed, seconds = summary.get("best"), summary.get("images_per_s"), summary.get("seconds_total")
    return [
        name,
        summary["state"] or "-",
        f"{datetime.datetime.fromtimestamp(launched):%Y-%m-%d %H:%M}" if launched else "-",
        summary.get("workers", "-"),
        summary.get("epochs_done", "-"),
        f"{summary['steps']:,}" if "steps" in summary else "-",
        text.duration(seconds) if seconds else "-",
        text.Number(speed, 0) if speed else "-",
        f"{best['val_accuracy']:.4f} (epoch {best['epoch']})" if best else "-",
    ]


def _share(parts: list[float], wholes: list[float]) -> float | None:
    return sum(parts) / sum(wholes) if wholes and sum(wholes) > 0 else None


def table(run: str, state: str | None, hosts: list[dict[str, Any]], seen: list[dict[str, Any]], counts: dict[str, Any]) -> str:
    """The status of a run: its progress, a line for each worker, and what a step is made of where that is known."""
    by_host = {look["host"]: look for look in seen if look}
    rows = [_row(host, by_host.get(host["name"], {"state": "unreachable"})) for host in hosts]
    header = ["rank", "host", "state", "phase", "step", "waits for input", "heard", "note"]
    chief = by_host.get(hosts[0]["name"], {})
    lines = [f"{run}: {overall(state, list(by_host.values()))}", *_progress(chief, counts), "", text.table(header, rows)]
    phases = split.shown({host["name"]: found for host in hosts if (found := by_host.get(host["name"], {}).get("split"))})
    return "\n".join([*lines, *(["", phases] if phases else [])])


def overall(recorded: str | None, seen: list[dict[str, Any]]) -> str:
    """The run's state: what the workers say while one lives, else what was recorded at the end."""
    if any(look["state"] == "running" for look in seen):
        return "RUNNING"
    if recorded not in (None, "RUNNING"):
        return str(recorded)
    if seen and all(look["state"] == "done" for look in seen):
        return "SUCCEEDED (results not collected yet)"
    return "ended without being watched; continue it with train.yml"


def _row(host: dict[str, Any], look: dict[str, Any]) -> list[Any]:
    steps, heard, wait = look.get("steps"), look.get("heard"), look.get("input_wait")
    alive = look["state"] == "running"
    note = look.get("note", "")
    if look.get("exit_code"):
        note = f"exit code {look['exit_code']}{text.signal_name(look['exit_code'])}"
    elif alive and heard is not None and heard > 15:
        note = "silent"
    return [
        host["rank"],
        host["name"],
        look["state"],
        look.get("phase", "-") if alive else "-",
        f"{steps['step']:,}" if steps else "-",
        f"{wait:.1%}" if wait is not None else "-",
        f"{heard:.0f} s ago" if heard is not None and alive else "-",
        note,
    ]


def _progress(chief: dict[str, Any], counts: dict[str, Any]) -> list[str]:
    if not chief.get("steps"):
        return []
    left = Estimate(counts).left(chief["steps"]["step"], chief["steps"]["images_per_s"])
    return ["  " + text.progress(chief["steps"], counts, chief.get("epoch"), left)]
