"""The description of a single-host benchmark, from its command line to its results' folder."""

import datetime
import shlex
from collections.abc import Sequence
from typing import Any

from control.campaign.store import refuse_other
from control.common import project, text
from control.common.command_line import as_typed
from control.remote import trainer_package
from trainer.common.files import read_json
from trainer.rundir.launch_record import Host

CODE = trainer_package.Archive("benchmarks", ("benchmarks/node", "trainer"))
RESULTS = project.ROOT / "benchmarks" / "results"
"""Has one folder per measurement: results.csv, summary.json, a picture."""
ROWS, MEASUREMENTS, PLAN = "results.csv", "measurements.jsonl", "plan.json"


def new(kind: str, options: dict[str, Any], settings: dict[str, Any], config_yaml: str, **about: Any) -> dict[str, Any]:
    """A benchmark to run, as a fact.

    Args:
        kind: `loader` or `inference`.
        options: what was given with `-e`.
        settings: options of `python -m benchmarks.node <kind>`: numbers, tuples of numbers, or None.
        config_yaml: the configuration that it reads.
        about: what its conclusion needs to know.
    """
    stamp = datetime.datetime.now(tz=datetime.UTC)
    code = CODE.sha256()
    given = {name: ",".join(map(str, value)) if isinstance(value, tuple) else str(value) for name, value in settings.items() if value}
    return {
        "kind": kind,
        "name": f"{kind}-{stamp:%Y%m%d-%H%M%S}",
        "date": stamp.isoformat(timespec="seconds"),
        "command": command(f"benchmarks/{kind}.yml", options),
        "arguments": ["-m", "benchmarks.node", kind, *(part for name, value in given.items() for part in (f"--{name}", value))],
        "settings": settings,
        "config_yaml": config_yaml,
        "snapshot": None,
        "code_name": CODE.file_name(code),
        "code_sha256": code,
        **about,
    }


def earlier(variable: str, plan: dict[str, Any], alike: Sequence[str]) -> dict[str, Any]:
    """The plan with which a benchmark of that name began, empty if there is none; ConfigError if it differs in one of these keys."""
    path = RESULTS / plan["name"] / PLAN
    before = dict(read_json(path)) if path.is_file() else {}
    changed = [f"{key} ({before.get(key)}, now {plan[key]})" for key in alike if before and before.get(key) != plan[key]]
    refuse_other(variable, plan["name"], changed)
    return before


def planned(bench: dict[str, Any], options: dict[str, Any], host: Host, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """The result of a task that planned it: the plan for display, and the facts `bench`, `cluster` and `run_options`."""
    first = ("host", f"{host.label} (the first of the inventory)")
    shown = text.fields([first, *pairs, ("results", project.relative(RESULTS / bench["name"]))])
    return {"show": f"Plan\n{shown}", "ansible_facts": {"bench": bench, "cluster": [host], "run_options": options}}


def command(playbook: str, options: dict[str, Any]) -> str:
    """The command line for a playbook with these variables, including the inventory of this command."""
    given = " ".join(f"-e {shlex.quote(_variable(name, str(value)))}" for name, value in options.items())
    return as_typed(f"ansible-playbook {playbook} {given}".rstrip())


def _variable(name: str, value: str) -> str:
    """The variable, with its own quotes if needed: Ansible splits unquoted text at spaces."""
    return f'{name}="{value}"' if " " in value else f"{name}={value}"
