"""What a benchmark of one host is, from its command line to where its results lie."""

import datetime
import shlex
from pathlib import Path
from typing import Any

from plugins.callback.lockstep import as_typed
from plugins.shared import control
from trainer import package

RESULTS = control.ROOT / "benchmarks" / "results"
"""A folder for every measurement: results.csv, summary.json, a picture."""


def new(kind: str, options: dict[str, Any], arguments: list[str], config_yaml: str, **about: Any) -> dict[str, Any]:
    """A benchmark that is to be run, as a fact.

    Args:
        kind: `loader` or `inference`.
        options: what was given with `-e`.
        arguments: of `trainer benchmark-<kind>`, beside its folders and threads.
        config_yaml: the configuration that it reads.
        about: what its conclusion has to know.
    """
    stamp = datetime.datetime.now(tz=datetime.UTC)
    return {
        "kind": kind,
        "name": f"{kind}-{stamp:%Y%m%d-%H%M%S}",
        "date": stamp.isoformat(timespec="seconds"),
        "command": command(f"benchmarks/{kind}.yml", options),
        "arguments": [f"benchmark-{kind}", *arguments],
        "config_yaml": config_yaml,
        "snapshot": None,
        "code_name": f"trainer-{package.digest()}.zip",
        **about,
    }


def command(playbook: str, options: dict[str, Any]) -> str:
    """What a person types for a playbook with these variables, the inventory of this command included."""
    given = " ".join(f"-e {shlex.quote(_variable(name, str(value)))}" for name, value in options.items())
    # The inventory is put before playbooks at the root only.
    return f"{as_typed('ansible-playbook train.yml').replace('train.yml', playbook)} {given}".rstrip()


def _variable(name: str, value: str) -> str:
    """Ansible splits at spaces what is in no quotes of its own."""
    return f'{name}="{value}"' if " " in value else f"{name}={value}"


def results(name: str) -> Path:
    """Folder of a benchmark's results."""
    return RESULTS / name
