"""Instructions to train a run again, here and on another machine: Lockstep's revision and address, and the commands."""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

from control.report.blocks import Command, Section, Text, code, moment
from control.report.facts import Run
from control.report.own_files import OwnFiles

SCP = re.compile(r"[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:[^\s'\"]+")
"""Pattern of an address such as `git@github.com:owner/name.git`."""


def address(project: Path) -> str | None:
    """Public address of this project: from pyproject.toml, else the clone's remote; None if neither is reachable from elsewhere."""
    file = project / "pyproject.toml"
    named = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {}).get("urls", {}) if file.is_file() else {}
    every = {name.lower(): url for name, url in named.items()}
    first = next((every[name] for name in ("repository", "source", "homepage") if name in every), None)
    return _public(first or _remote(project))


def _remote(project: Path) -> str:
    # Without this option, git would name the remote of a repository that contains the folder.
    if not (project / ".git").exists():
        return ""
    try:
        argv = ["git", "config", "--get", "remote.origin.url"]
        completed = subprocess.run(argv, cwd=project, capture_output=True, text=True, check=False, timeout=10)
    except FileNotFoundError:
        return ""
    return completed.stdout.strip()


def _public(url: str) -> str | None:
    """An address for the web without name and password; None if another machine could not use it."""
    if not url.isprintable() or " " in url:
        return None
    if SCP.fullmatch(url):
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.scheme not in ("https", "http", "ssh", "git") or not parts.hostname:
        return None
    user = f"{parts.username}@" if parts.scheme == "ssh" and parts.username else ""
    return parts._replace(netloc=user + parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def section(run: Run, subject: str, where: str | None, own: OwnFiles) -> Section:
    """Section with the commands that train a run again; elsewhere they use the zip `subject`. `where` is Lockstep's `address`."""
    # The record belongs to the last launch.
    began = "It was last continued" if run.summary.restarts else "It began"
    again = f"{began} at {moment(run.record.created_at)} with the code of {run.revision}. The same training again, under a new name:"
    elsewhere = f"On another machine, with {subject}.zip{_lacking(run)}:"
    return Section(
        "How to train it again",
        [
            Text([again]),
            Command(_train(run)),
            Text([elsewhere]),
            Command(_elsewhere(run, subject, where, own), here=False),
        ],
    )


def _lacking(run: Run) -> str:
    data, weights = run.config.get("data") or {}, (run.config.get("train") or {}).get("weights")
    lacks = [f"the dataset {code(run.record.dataset['name'])}, here PATH"] if data.get("source") not in ("own", "fashion_mnist") else []
    lacks += [f"the weights {code(weights['file'])}, here WEIGHTS"] if weights else []
    return f" (not in it: {'; '.join(lacks)})" if lacks else ""


def _train(run: Run, folder: str = "") -> str:
    # `auto` may choose differently next time.
    chosen = f" -e set=reduction.name={run.reduction}" if run.reduction != (run.config.get("reduction") or {}).get("name") else ""
    start = run.summary.started_by
    config = f"{folder}runs/{run.name}/config.yml"
    return f"ansible-playbook {start} -e config={config} -e workers={run.record.counts['workers']}{chosen}"


def _elsewhere(run: Run, subject: str, where: str | None, own: OwnFiles) -> str:
    source = (run.config.get("data") or {}).get("source")
    dataset = f"{subject}/{own.folder}{own.dataset}" if own.dataset else "" if source == "fashion_mnist" else "PATH"
    given = f" -e {shlex.quote(f'dataset={dataset}')}" if dataset else ""
    given += " -e weights=WEIGHTS" if (run.config.get("train") or {}).get("weights") else ""
    known = (run.record.revision or "").rstrip("+")
    checkout = f"git checkout {known}" if known else ""
    clone = f"git clone {shlex.quote(where)} lockstep && cd lockstep" if where else "cd lockstep"
    return "\n".join(
        [
            " && ".join(filter(None, (clone, checkout))),
            "make setup && . .venv/bin/activate",
            f"unzip {subject}.zip",
            _train(run, f"{subject}/") + given,
        ]
    )
