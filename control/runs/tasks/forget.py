"""Remove a run's folder from the control node."""

import shutil
from typing import Any

from control import project
from control.runs.plan import check_run_name
from control.task import Task


def forget(task: Task) -> dict[str, Any]:
    """Remove `runs/<run>`, if it exists. The last step of deleting a run: its hosts have already forgotten it."""
    name = str(task.arguments["run"])
    check_run_name(name)
    folder = project.RUNS / name
    exists = folder.is_dir()
    if exists and not task.check_mode:
        shutil.rmtree(folder)
    outcome = "would be deleted" if task.check_mode else "deleted"
    return {"changed": exists, "show_last": f"{name}: {outcome}\n\nNext\n  see what is left  ansible-playbook status.yml"}
