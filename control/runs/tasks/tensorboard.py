"""Start or stop TensorBoard on the control node, in a tmux session, bound to the loopback address."""

import sys
from pathlib import Path
from typing import Any

from control.common import command_line, project, text
from control.common.operator_variables import check_state
from control.common.task import Task
from control.common.web_server import WebServer, tunnel
from control.runs.results import hparams
from control.runs.results.run_folder import RunFolder
from control.runs.results.run_names import latest_run

SERVER = WebServer("TensorBoard", "tensorboard", 6006, "tensorboard_port", "/")


def tensorboard(task: Task) -> dict[str, Any]:
    """Start it, stop it, or report that there is nothing to do.

    `state=present` (default) starts it unless it is running; `state=absent` ends it.
    """
    options = command_line.operator_options("tensorboard", task.task_vars)
    state, up = check_state(options), SERVER.is_up()
    if state == "absent":
        if not task.check_mode:
            SERVER.stop()
        return {"changed": up, "show_last": "TensorBoard is stopped" if up else "TensorBoard was not running"}
    return {"changed": not up} if task.check_mode else _start(options)


def _start(options: dict[str, Any]) -> dict[str, Any]:
    asked = SERVER.port_of(options)
    one = latest_run(project.RUNS, str(options["run"])) if "run" in options else None
    written, complaints = hparams.write_all(RunFolder(folder) for folder in ([one] if one else _everything()))
    folder = str(one or _view())
    argv = [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--host", "127.0.0.1", "--port"]
    port, changed = SERVER.start({"folder": folder}, asked, lambda port: [*argv, str(port)])
    return {"changed": written > 0 or changed, "show_last": "\n".join([_where(port), *complaints])}


def _everything() -> list[Path]:
    """Directories of all runs and of all sweeps' trials."""
    return sorted([*project.RUNS.glob("*/"), *project.SWEEPS.glob("*/trials/*/")])


def _view() -> Path:
    """Folder that shows runs and sweeps as one tree, in which TensorBoard also finds later ones."""
    view = project.PRIVATE / "tensorboard"
    view.mkdir(parents=True, exist_ok=True)
    for folder in (project.RUNS, project.SWEEPS):
        link = view / folder.name
        if not (link.is_symlink() and link.readlink() == folder):
            link.unlink(missing_ok=True)
            link.symlink_to(folder)
    return view


def _where(port: int) -> str:
    pairs = [
        ("here", f"http://127.0.0.1:{port}/"),
        ("table of runs", f"http://127.0.0.1:{port}/#hparams"),
        ("from elsewhere", f"{tunnel('127.0.0.1', port)}   and then open http://127.0.0.1:{port}/"),
    ]
    return f"TensorBoard is up\n{text.fields(pairs)}\n\n" + text.next_commands(
        [("stop it", "ansible-playbook tensorboard.yml -e state=absent")]
    )
