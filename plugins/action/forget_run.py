"""Remove a run's folder from the control node."""

import shutil
from typing import Any

from plugins.shared import control
from trainer.plan import check_run_name


class ActionModule(control.ControlAction):
    """The last step of deleting a run: its hosts have forgotten it already."""

    def act(self) -> dict[str, Any]:
        """Remove `runs/<run>`, if it is there."""
        name = str(self.arguments["run"])
        check_run_name(name)
        folder = control.RUNS / name
        there = folder.is_dir()
        if there and not self._task.check_mode:
            shutil.rmtree(folder)
        said = "would be deleted" if self._task.check_mode else "deleted"
        return {"changed": there, "show_last": f"{name}: {said}\n\nNext\n  see what is left  ansible-playbook status.yml"}
