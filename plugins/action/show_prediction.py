"""Show what a snapshot takes one image for."""

import json
from typing import Any

from ansible.errors import AnsibleActionFail

from plugins.shared import control
from trainer.analysis import text
from trainer.errors import refusal


class ActionModule(control.ControlAction):
    """Runs on the control node."""

    def act(self) -> dict[str, Any]:
        """Three classes, the most probable first."""
        output = self.arguments["output"]
        if output["rc"] != 0:
            raise AnsibleActionFail(refusal(output["stderr"]) or "\n".join(output["stderr_lines"][-20:]))
        classes = json.loads(output["stdout_lines"][-1])
        rows = [[row["class"], f"{row['probability']:.1%}"] for row in classes]
        heading = f"{self.arguments['image']} by {self.arguments['run']}, epoch {self.arguments['epoch']}"
        return {"show_last": f"{heading}\n{text.table(['class', 'probability'], rows)}"}
