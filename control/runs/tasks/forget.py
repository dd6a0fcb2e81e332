"""Remove a run's folder from the control node."""

import shutil
from typing import Any

from control import project
from control.runs.plan import check_run_name
from control.task import Task


class Forget(Task):
    """The last step of deleting a run: its hosts have already forgotten it."""

    def act(self) -> dict[str, Any]:
        """Remove `runs/<run>`, if it exists."""
        name = str(self.arguments["run"])
        check_run_name(name)
        folder = project.RUNS / name
        exists = folder.is_dir()
        if exists and not self.check_mode:
            shutil.rmtree(folder)
        outcome = "would be deleted" if self.check_mode else "deleted"
        return {"changed": exists, "show_last": f"{name}: {outcome}\n\nNext\n  see what is left  ansible-playbook status.yml"}
