"""The size of every model, without TensorFlow: takes the place of `control/runs/planning/examine_model.py` beside the stub worker."""

from typing import Any

PARAMETERS = 8


def examine(*arguments: Any, **settings: Any) -> dict[str, Any]:
    """See `control.runs.planning.examine_model.examine`."""
    return {"total": PARAMETERS, "trainable": PARAMETERS, "compiled": None, "left": []}
