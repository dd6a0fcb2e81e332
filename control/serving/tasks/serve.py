"""Serve an exported model over HTTP on the control node, or end that."""

import ipaddress
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from control.common import command_line, project, text
from control.common.operator_variables import check_state, integer
from control.common.task import Task
from control.common.web_server import WebServer, at, get, tunnel
from control.serving.signature import ExportedModel, VersionFolder
from trainer.common.errors import ConfigError, LockstepError
from trainer.common.safe_text import printable
from trainer.common.suggest import nearest
from trainer.data.spec import STRING, Leaf

SERVER = WebServer("The server", "serve", 8501, "serve_port", "/healthz")
"""8501 is TensorFlow Serving's port for REST."""
LONGEST = 300
"""Characters of an example request."""
MEMORY_GIB, SECONDS = 2, 30
"""Default memory of all requests beside the model, GiB, and time in which each is answered, s."""
LOADED_S, LOOK_S = 20.0, 0.3
"""Time in which a new version is usually loaded, and between two looks whether it is."""


def serve(task: Task) -> dict[str, Any]:
    """Start it, stop it, or report that there is nothing to do.

    `state=present` (default) starts it unless it runs with the same model; `state=absent` ends it.
    """
    options = command_line.operator_options("serve", task.task_vars)
    up = SERVER.is_up()
    if check_state(options) == "absent":
        if not task.check_mode:
            SERVER.stop()
        return {"changed": up, "show_last": "The server is stopped" if up else "No server was running"}
    folder, address = _model(options.get("run")), _address(str(options.get("serve_address", "127.0.0.1")))
    asked = SERVER.port_of(options)
    memory, seconds = (
        integer(name, options.get(name, usual)) for name, usual in (("serve_memory", MEMORY_GIB), ("serve_seconds", SECONDS))
    )
    wanted = {"folder": str(folder), "address": address, "memory": memory, "seconds": seconds}
    if task.check_mode:
        before = SERVER.started_with()
        same = before == {"port": asked or before.get("port"), **wanted}
        return {"changed": not same, "show_last": f"Would serve {folder.name}" if not same else f"{folder.name} is served already"}
    argv = [sys.executable, "-m", "control", "serve", "--folder", str(folder), "--address", address]
    argv += ["--memory", str(memory), "--seconds", str(seconds), "--port"]
    port, changed = SERVER.start(wanted, asked, lambda port: [*argv, str(port)], address)
    if not ipaddress.ip_address(address).is_loopback:
        task.warn([f"serve_address={address}: whoever reaches port {port} of this machine may ask the model; nothing asks for a password"])
    return {"changed": changed, "show_last": _shown(folder, address, port)}


def _model(run: Any) -> Path:
    """The folder of a run's exported versions; the one exported last if none is named."""
    exported = {path.name: path for path in project.EXPORTS.glob("*/") if VersionFolder(path).numbers}
    if not exported:
        raise LockstepError("there is no exported model; first: ansible-playbook export.yml -e run=NAME")
    if run is None:
        return max(exported.values(), key=lambda path: (path / str(VersionFolder(path).numbers[-1])).stat().st_mtime)
    if str(run) not in exported:
        raise ConfigError(
            f"run={run}: no such exported model{nearest(str(run), exported)}; there are: {', '.join(sorted(exported))}. "
            f"Export it: ansible-playbook export.yml -e run={run}"
        )
    return exported[str(run)]


def _address(given: str) -> str:
    try:
        return str(ipaddress.ip_address(given))
    except ValueError:
        raise ConfigError(f"serve_address={given}: expected an IP address of this machine, as 127.0.0.1, or 0.0.0.0 for all") from None


def _shown(folder: Path, address: str, port: int) -> str:
    base = f"http://{at(address, port)}"
    asked = f"{base}/v1/models/{folder.name}:predict"
    served, behind = _served(folder, address, port)
    exported = ExportedModel.read(folder / str(served))
    pairs = [
        (
            "model",
            f"version {served}: epoch {exported.epoch} of {exported.run}; what is exported or withdrawn later is followed within seconds",
        ),
        *([("warning", behind)] if behind else []),
        ("try it", f"{base}/"),
        ("ask it", _request(exported, asked)),
        ("metrics", f"{base}/metrics"),
        *([("from elsewhere", tunnel(address, port))] if ipaddress.ip_address(address).is_loopback else []),
    ]
    return f"{folder.name} is served\n{text.fields(pairs)}\n\n" + text.next_commands(
        [
            ("newer version", f"ansible-playbook export.yml -e run={folder.name} -e epoch=last"),
            ("stop it", "ansible-playbook serve.yml -e state=absent"),
        ]
    )


def _served(folder: Path, address: str, port: int) -> tuple[int, str]:
    """The version that the server answers with, and why it is not the newest on disk; empty if it is."""
    path, deadline, served = f"/v1/models/{folder.name}", time.monotonic() + LOADED_S, 0
    while time.monotonic() < deadline:
        known = get(address, port, f"{path}/metadata")
        served = int(json.loads(known)["model_spec"]["version"]) if known else 0
        states = {int(one["version"]): one for one in json.loads(get(address, port, path) or "{}").get("model_version_status", [])}
        bad = [number for number, one in states.items() if number > served and one["state"] != "AVAILABLE"]
        if served and states and max(states) in (served, *bad):
            newest = max(states)
            why = f"version {newest} is not served: {states[newest]['status']['error_message']}" if bad else ""
            return served, why and f"{printable(why, LONGEST)}. Fix: ansible-playbook export.yml -e run={folder.name}"
        time.sleep(LOOK_S)
    if served:
        return served, f"version {VersionFolder(folder).numbers[-1]} is not served yet"
    raise LockstepError(f"the server answers with no version of {folder.name}; see {project.relative(SERVER.log)}")


def _request(exported: ExportedModel, address: str) -> str:
    """A shell command that asks for a picture, or for a row of zeros."""
    if exported.image_size is not None:
        return f'echo \'{{"instances": [{{"b64": "\'$(base64 -w0 PICTURE.png)\'"}}]}}\' | curl -d @- {address}'
    row = {leaf.name: _zeros(leaf) for leaf in exported.inputs}
    body = json.dumps({"instances": [row if len(row) > 1 else next(iter(row.values()))]})
    if len(body) > LONGEST:
        return f"curl -d '{{\"instances\": [...]}}' {address}"
    return f"curl -d {shlex.quote(body)} {address}"


def _zeros(leaf: Leaf, axis: int = 0) -> Any:
    if axis == len(leaf.shape):
        return "" if leaf.dtype == STRING else False if leaf.dtype == "bool" else 0
    return [_zeros(leaf, axis + 1)] * (1 if leaf.shape[axis] is None else leaf.shape[axis] or 0)
