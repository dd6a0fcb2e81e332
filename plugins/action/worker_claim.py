"""The module `worker_claim`, sent lean, with what only the control node has: the start script, and the launch's secret.

The secret passes Ansible's arguments and logs by.
"""

from pathlib import Path
from typing import Any

from control.remote import modules
from control.runs.hosts import launch_secret
from control.runs.planning import script_plan
from plugins.shared.base_action import Action
from trainer.rundir.launch_record import RECORD, LaunchRecord


class ActionModule(Action):
    """See `plugins/modules/worker_claim.py`; a file with `secret: true` gets the secret of `launch`, for its user alone.

    With `start`, what the worker is started for: its `plan`, `rank` and `folder`, its Python's `arguments` unless it runs a script, and
    the `shared` folder. The launch's record goes there from the run's directory on this machine.
    """

    def act(self, files: Any = (), start: Any = None, **arguments: Any) -> dict[str, Any]:
        """Run the module."""
        written = [_with_secret(file, arguments["launch"]) if file.get("secret") else file for file in files]
        if start:
            name, record = f"Worker {start['rank']} of run {arguments['run']}", Path(start["plan"]["folder"]) / RECORD
            script = self.start_script(name, start["folder"], _command(start, **arguments))
            written.append({"path": f"{arguments['folder']}/{RECORD}", "content": record.read_text(encoding="utf-8")})
            written.append({"path": f"{start['folder']}/run_worker.sh", "content": script, "mode": "0750"})
        return modules.execute(self, "worker_claim", {**arguments, "files": written}, bool(self._task.check_mode))


def _command(start: dict[str, Any], folder: str, host: str, **_: Any) -> list[str]:
    """Arguments of the host's Python."""
    plan, worker = start["plan"], start["arguments"]
    if plan["script"]:
        worker = script_plan.command(plan["script"], folder, host, start["shared"], LaunchRecord.read(Path(plan["folder"])).hosts)
    # A queued run waits for its turn first.
    turn = ["-m", "trainer.supervision.queue", folder, host] if plan["ticket"] else []
    return [*turn, *worker]


def _with_secret(file: dict[str, Any], launch: str) -> dict[str, Any]:
    return {"path": file["path"], "content": launch_secret.of_launch(launch), "mode": "0600"}
