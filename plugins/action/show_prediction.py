"""Show what a snapshot takes one image for."""

import json
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from trainer.analysis import text


class ActionModule(ActionBase):
    """Runs on the control node."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Three classes, the most probable first."""
        result = super().run(tmp, task_vars)
        output = self._task.args["output"]
        if output["rc"] != 0:
            errors = [line for line in output["stderr_lines"] if line.startswith("error: ")]
            raise AnsibleActionFail(errors[-1].removeprefix("error: ") if errors else "\n".join(output["stderr_lines"][-20:]))
        classes = json.loads(output["stdout_lines"][-1])
        rows = [[row["class"], f"{row['probability']:.1%}"] for row in classes]
        heading = f"{self._task.args['image']} by {self._task.args['run']}, epoch {self._task.args['epoch']}"
        result["show_last"] = f"{heading}\n{text.table(['class', 'probability'], rows)}"
        return result
