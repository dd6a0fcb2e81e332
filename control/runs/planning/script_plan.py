"""A run of the user's own script: its archive, its plan, and its start command on hosts. The script is never executed here."""

import hashlib
import json
import os
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from control.common import configurations
from control.common.plan import Plan
from control.remote import admission, trainer_package
from control.runs.planning.host_needs import LOGS_MB
from control.runs.planning.plan_request import OperatorRequest, Request
from control.runs.results.run_names import check_run_name
from control.runs.results.summary import Summary
from trainer.common.errors import ConfigError
from trainer.rundir.launch_record import Host, LaunchRecord

LARGEST_MB = 200
"""Largest total size of a script's folder, MB."""


MEMORY_MB = 100
FILES = 5_000
MAIN = "main.py"
PASSED_OVER = ("__pycache__",)


def is_asked(asked: OperatorRequest, runs: Path) -> bool:
    """Return whether a request is about a script's run.

    Args:
        asked: the operator's variables.
        runs: folder of run directories.

    Raises:
        ConfigError: a script's options for a model's run, or an invalid name of a run.
    """
    name, options = "new" if asked.run is None else asked.run, asked.typed
    check_run_name(name)
    run = runs / name
    if asked.run and _recorded_section(run):
        return True
    names = [name for name in ("script", "args", "outputs") if name in options]
    if names and asked.run and (run / "config.yml").is_file():
        raise ConfigError(
            f"{names[0]}={options[names[0]]}: run={run.name} trains a model and is no script's run; give the script another run name"
        )
    if names and asked.script is None:
        raise ConfigError(f"{names[0]}={options[names[0]]}: it belongs to a script; name one, as in -e script=FILE.py")
    return bool(names)


def _recorded_section(run: Path | None) -> dict[str, Any]:
    """Section `script` of a run's config.yml, as `{"script": {...}}`; empty for a run that trains a model."""
    path = run / "config.yml" if run is not None else None
    raw = configurations.load(path) if path is not None and path.is_file() else {}
    return {"script": raw["script"]} if isinstance(raw.get("script"), dict) else {}


def refuse(run: Path, command: str) -> None:
    """Refuse a command that needs a model's run.

    Raises:
        ConfigError: this is a script's run.
    """
    if _recorded_section(run):
        raise ConfigError(
            f"run={run.name}: it runs a script of yours, and {command} needs a run that trains a model; "
            f"what the script left is in runs/{run.name}/output"
        )


def make_script_plan(request: Request) -> Plan:
    """Make the plan of a script's run; the counterpart of `plan.make_plan`.

    Raises:
        LockstepError: any error that can be found before a host is touched.
    """
    request.asked.check_script()
    name, existing = request.run_name()
    started, hosts, code = request.started, request.hosts, trainer_package.TRAINER.sha256()
    section = _section(request, existing)
    before = LaunchRecord.read(started)
    section["restarts"] = before.script["restarts"] + 1 if before else 0
    kept = ("file", "main", "sha256", "args", "outputs", "time_limit")
    written = yaml.safe_dump({"script": {key: section[key] for key in kept if key in section}}, sort_keys=False)
    number, launched = len(before.hosts or hosts), before.script or section
    asked = [("workers", len(hosts), number), ("time_limit", *(one.get("time_limit", 0) for one in (section, launched)))]
    return Plan(
        run=name,
        folder=request.runs / name,
        resume=started is not None,
        complete=bool(started and Summary.read(started).state == "SUCCEEDED"),
        script=section,
        config_name="none",
        config_yaml=written,
        asked_yaml=written,
        needs={"memory_mb": MEMORY_MB, "server_mb": 0, "states_mb": 0, "snapshots": 0, "snapshot_mb": 0}
        | dict.fromkeys(("disk_mb", "disk_whole_mb", "free_mb"), LOGS_MB),
        dataset={"digest": None, "manifest": ""},
        code=code[:16],
        code_sha256=code,
        changes=[f"{name}={now} (it has {then})" for name, now, then in asked if now != then],
    )


def _section(request: Request, existing: Path | None) -> dict[str, Any]:
    """The section with `script`, `args` and `outputs`; an existing run keeps its script and arguments."""
    options, before = request.asked.typed, _recorded_section(existing).get("script")
    given: dict[str, Any] = {}
    if request.asked.script is not None:
        given |= send(request.asked.script, request.code if request.write else None)
    if "args" in options:
        given["args"] = arguments(str(options["args"]))
    if before is not None and LaunchRecord.read(existing):
        assert existing is not None
        _check_same(existing.name, before, given)
    section = {"args": [], "outputs": [], **(before or {}), **given}
    if "outputs" in options:
        section["outputs"] = outputs(str(options["outputs"]))
    if request.asked.time_limit is not None:
        section["time_limit"] = request.asked.time_limit
    archive = trainer_package.file_name("script", section["sha256"])
    if request.asked.script is None and not (request.code / archive).is_file():
        raise ConfigError(f"run: this machine no longer has the script's archive {archive}; name it again: -e script={section['file']}")
    return {**section, "archive": archive}


def _check_same(run: str, before: dict[str, Any], given: dict[str, Any]) -> None:
    """Refuse to start a run's directory again with another script or other arguments."""
    changed = [name for name, key in (("script", "sha256"), ("args", "args")) if key in given and given[key] != before[key]]
    if changed:
        raise ConfigError(
            f"run={run}: this run exists with another {' and '.join(changed)}. Leave that out to start it again as it was, "
            "or give a new run name"
        )


def arguments(text: str) -> list[str]:
    """A command line's words, split as a shell splits them; nothing is expanded.

    Raises:
        ConfigError: an unclosed quote, or a NUL character.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"args={text}: can't be split into words ({error}); close the quote") from None
    if "\0" in text:
        raise ConfigError("args: a NUL character can't be part of an argument; leave it out")
    return words


def outputs(text: str) -> list[str]:
    """Parse the files and folders that a script leaves in its working directory, as in `a,b/`.

    Raises:
        ConfigError: a name that leads out of the directory, or that can't be fetched from a host.
    """
    names = [name.strip().rstrip("/") for name in text.split(",")]
    for name in names:
        if not admission.OUTPUT.fullmatch(name):
            raise ConfigError(
                f"outputs={name}: a name is relative to the script's folder, of letters, digits, spaces and _ . = + @ % -, and begins "
                "with a letter, digit or _ in each part, as in outputs=model.keras,logs/"
            )
    return names


def send(given: str, into: Path | None) -> dict[str, Any]:
    """Pack a script: FILE.py alone, FOLDER/FILE.py with its folder, or FOLDER with main.py.

    Args:
        given: path of the script as typed.
        into: folder for the archive; None: nothing is written.

    Returns:
        `file` as typed, `main` (the file to start), `sha256` of the archive, `files` and `bytes`.

    Raises:
        ConfigError: the script does not exist, is too large, or has links that lead out of its folder.
    """
    path = Path(given).expanduser()
    main = path / MAIN if path.is_dir() else path
    if not main.is_file() or main.suffix != ".py":
        rule = f"no such folder with a {MAIN}" if path.is_dir() else "no such file that ends in .py"
        raise ConfigError(f"script={given}: {rule}; give FILE.py, FOLDER/FILE.py, or a FOLDER with {MAIN}")
    alone = not path.is_dir() and path.parent == Path(".") and "/" not in given
    files = {main.name: main.resolve()} if alone else _collect(main.parent, given)
    data = trainer_package.zipped(files)
    if into is not None:
        trainer_package.write_archive(into, "script", data)
    return {"file": given, "main": main.name, "sha256": hashlib.sha256(data).hexdigest(), "files": len(files), "bytes": len(data)}


def _collect(folder: Path, given: str) -> dict[str, Path]:
    """All files of a script's folder by name, without hidden files and bytecode caches; ConfigError as in `send`."""
    root, files, size = folder.resolve(), dict[str, Path](), 0
    for parent, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not _passed_over(name))
        for name in sorted(name for name in [*names, *folders] if not _passed_over(name)):
            path = Path(parent) / name
            if path.is_dir() and not path.is_symlink():
                continue
            _check_file(path, root, given)
            files[path.relative_to(root).as_posix()] = path
            size += path.stat().st_size
            if size > LARGEST_MB * 2**20 or len(files) > FILES:
                raise ConfigError(
                    f"script={given}: its folder {root} has more than {LARGEST_MB} MB or {FILES:,} files, and all of it is sent to each "
                    "host. Fix: put the script into a folder of its own, and data where every host has it"
                )
    return files


def _passed_over(name: str) -> bool:
    return name.startswith(".") or name in PASSED_OVER


def _check_file(path: Path, root: Path, given: str) -> None:
    """Refuse a path that is no regular file inside the folder."""
    resolved = path.resolve()
    if not resolved.is_relative_to(root) or not resolved.exists():
        raise ConfigError(f"script={given}: {path.relative_to(root)} is a link out of the folder ({resolved}); copy the file there instead")
    if not stat.S_ISREG(resolved.stat().st_mode):
        raise ConfigError(f"script={given}: {path.relative_to(root)} is no regular file; take it out of the folder")


def command(script: dict[str, Any], run_folder: str, host: str, shared: str, hosts: Sequence[Host]) -> list[str]:
    """Arguments of Python that start the script on a host; `trainer.launch.user_script.Script.read` reads the last one.

    Args:
        script: `script` of the plan.
        run_folder: the run directory on the host.
        host: its inventory name.
        shared: the hosts' shared folder.
        hosts: all workers, by rank.
    """
    given = {
        **{name: script[name] for name in ("sha256", "main", "outputs", "restarts")},
        "run": run_folder,
        "host": host,
        "archive": str(PurePosixPath(shared) / "code" / script["archive"]),
        "arguments": script["args"],
        "time_limit": script.get("time_limit", 0),
        "peers": [one.endpoint("direct_port") for one in hosts],
    }
    return ["-m", "trainer", "script", json.dumps(given)]
