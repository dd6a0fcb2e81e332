"""Show how a snapshot classifies one image."""

from typing import Any

from ansible.errors import AnsibleActionFail

from control import text
from control.task import Task
from trainer import records
from trainer.errors import refusal

COPY = "image"
"""The role's name for the image on the chief."""


class ShowPrediction(Task):
    """Runs on the control node."""

    def act(self) -> dict[str, Any]:
        """Three classes, the most probable first."""
        output = self.arguments["output"]
        if output["rc"] != 0:
            # The chief has a copy under another name.
            message = refusal(output["stderr"]).replace(f"image={COPY}:", f"image={self.arguments['image']}:", 1)
            raise AnsibleActionFail(message or "\n".join(output["stderr_lines"][-20:]))
        classes = records.prediction((output["stdout_lines"] or [""])[-1])
        rows = [[row["class"], f"{row['probability']:.1%}"] for row in classes]
        heading = f"{self.arguments['image']} by {self.arguments['run']}, epoch {self.arguments['epoch']}"
        return {"show_last": f"{heading}\n{text.table(['class', 'probability'], rows)}"}
