"""Put together what the hosts predicted, write it, and show its first rows."""

import itertools
from pathlib import Path
from typing import Any

from control import project
from control.runs import predictions
from control.runs.predictions import Prediction
from control.task import Task


class WritePrediction(Task):
    """Runs on the control node."""

    def act(self) -> dict[str, Any]:
        """Check, write, show."""
        planned, hosts = self.arguments["planned"], [host["name"] for host in self.arguments["hosts"]]
        folder, output = Path(planned["folder"]), Path(planned["output"]) if planned["output"] else None
        prediction = Prediction.of(planned, predictions.names_of(folder))
        arrays = predictions.collected(prediction, folder, hosts)
        blocks, bad = predictions.tables(prediction, arrays), 0
        first = next(blocks)

        def counted() -> Any:
            nonlocal bad
            for block in itertools.chain([first], blocks):
                bad += predictions.not_finite(block)
                yield block

        if output is not None:
            predictions.write(output, counted())
        warnings = [*planned["warnings"], *([f"{bad:,} predicted numbers are NaN or infinite"] if bad else [])]
        busy = sum(1 for count in prediction.rows if count)
        shown = predictions.show(prediction, first, project.relative(output) if output else "", warnings, busy)
        return {"changed": output is not None, "show_last": shown}
