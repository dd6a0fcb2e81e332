"""Make and show the plan of `benchmarks/peers.yml`: which cells, on which hosts; no host is touched."""

import datetime
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peer_results import peers_results, peers_wheels
from benchmarks.peer_results.peer_trials import COMMAND, OWN, PEER, SYSTEMS, Settings, Wanted
from benchmarks.shared import benchmark
from benchmarks.shared.benchmark import ROWS
from control.campaign.store import SUMMARY, alone, check_name, other_hosts, refuse_other, remaining
from control.common import child_playbooks, command_line, project, text
from control.common.task import Task
from control.runs.hosts.inventory_hosts import check_absolute
from control.runs.planning import plan_command
from trainer.common.errors import ConfigError
from trainer.common.files import read_json, write_json
from trainer.common.plain_values import to_plain

CONTINUES = "What was measured is kept; to continue: {}"
SAME = {
    "settings": "steps, warm_up, seconds, batch or threads",
    "code": "trainer or peer programs (their code has changed)",
    "seed": "seed",
}
"""Values that must not change when a folder of results is continued, in words."""


def plan_peers(task: Task) -> dict[str, Any]:
    """Validate the options, compare them with existing results, show the plan.

    Returns the facts `peers_plan` (with `folder` and `cells` left to measure) and `cluster`.
    """
    options, hosts = command_line.operator_options(COMMAND, task.task_vars), to_plain(plan_command.hosts(task.task_vars))
    state = str(options.get("state", "present"))
    if state not in ("present", "absent"):
        raise ConfigError(f"state={state}: it must be present or absent")
    if "peers_path" in options:
        check_absolute({"peers_path": str(options["peers_path"])})
    if state == "absent":
        return {"ansible_facts": {"peers_plan": {"state": state, "peers_path": options.get("peers_path")}, "cluster": hosts}}
    child_playbooks.refuse_questions()
    if not task.check_mode:
        with alone():
            pass
    asked = Wanted.of(options, len(hosts), _is_lab(command_line.inventory()))
    record = _record(options, asked, hosts[: max(asked.workers)])
    all_cells = asked.cells()
    left = remaining(all_cells, peers_results.STORE.read(Path(record["folder"]) / ROWS))
    if not task.check_mode:
        write_json(Path(record["folder"]) / SUMMARY, {**_measured(Path(record["folder"])), **record})
    facts = {"peers_plan": {**record, "cells": [asdict(cell) for cell in left]}, "cluster": record["hosts"]}
    shown = _shown(record, asked, len(all_cells), len(left))
    more = {} if task.check_mode else {"if_interrupted": CONTINUES.format(record["again"])}
    return {"show": shown, "ansible_facts": facts, **more}


def _record(options: dict[str, Any], asked: Wanted, hosts: list[dict[str, Any]]) -> dict[str, Any]:
    now = datetime.datetime.now(tz=datetime.UTC)
    name = str(options.get("peers", f"peers-{now:%Y%m%d-%H%M%S}"))
    check_name("peers", name)
    folder = benchmark.RESULTS / name
    record = {
        "name": name,
        "date": now.isoformat(timespec="seconds"),
        "command": benchmark.command(f"{COMMAND}.yml", options),
        "again": benchmark.command(f"{COMMAND}.yml", {**options, "peers": name}),
        "state": "present",
        "lab": _is_lab(command_line.inventory()),
        "folder": str(folder),
        "code": peers_wheels.programs().name,
        "hosts": hosts,
        "workers": list(asked.workers),
        "links": list(asked.links),
        "systems": list(asked.systems),
        "environments": sorted({SYSTEMS[system].environment for system in asked.systems} - {OWN}),
        "rounds": asked.rounds,
        "seed": asked.seed,
        "settings": asdict(Settings.of(options)),
        "peers_path": options.get("peers_path"),
    }
    return {**record, **_check_same(folder, record)}


def _is_lab(inventory: Path) -> bool:
    """Return whether an inventory is this project's lab, whose links can be limited."""
    lab = project.ROOT / "inventory" / "lab"
    return inventory.resolve() in (lab, lab / "hosts.yml")


def _check_same(folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Values kept from an existing folder's summary."""
    before = _measured(folder)
    if not before:
        return {}
    changed = [words for key, words in SAME.items() if before[key] != record[key]]
    refuse_other("peers", record["name"], changed + other_hosts(before["hosts"], record["hosts"]))
    return {
        "date": before["date"],
        "command": before["command"],
        "workers": sorted({*before["workers"], *record["workers"]}),
        **{key: list(dict.fromkeys([*before[key], *record[key]])) for key in ("links", "systems")},
        "rounds": max(before["rounds"], record["rounds"]),
        "hosts": max(before["hosts"], record["hosts"], key=len),
    }


def _measured(folder: Path) -> dict[str, Any]:
    """The summary of a folder with results; empty for any other."""
    path = folder / SUMMARY
    return dict(read_json(path)) if path.is_file() and peers_results.STORE.read(folder / ROWS) else {}


def _shown(record: dict[str, Any], asked: Wanted, total: int, left: int) -> str:
    peers = [name for name in asked.systems if SYSTEMS[name].kind == PEER]
    pairs = [
        ("hosts", f"{len(record['hosts'])}: {', '.join(host['name'] for host in record['hosts'])}"),
        ("systems", ", ".join(name for name in asked.systems if name not in peers) or "-"),
        ("peers", ", ".join(peers) or "-"),
        ("links", ", ".join(peers_results.shown_link(link).replace("links ", "") for link in asked.links)),
        ("workers", text.listed(asked.workers)),
        ("cells", f"{total} in {text.count(asked.rounds, 'round')}" + (f", of them {left} still to measure" if left != total else "")),
        ("results", project.relative(Path(record["folder"]))),
    ]
    return f"Plan\n{text.fields(pairs)}"
