"""Lockstep in a script of the user's: `import lockstep`, and after `model.compile(...)`: `lockstep.distribute(model)`.

Where there is one worker, or the script was not started by Lockstep, nothing changes and nothing is loaded.
"""

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["distribute", "rank", "workers"]


def rank() -> int:
    """This worker's number, from 0, the chief."""
    return int(json.loads(os.environ["TF_CONFIG"])["task"]["index"]) if os.environ.get("TF_CONFIG") else 0


def workers() -> int:
    """How many workers there are."""
    return len(json.loads(os.environ["TF_CONFIG"])["cluster"].get("worker", [0])) if os.environ.get("TF_CONFIG") else 1


def distribute(model: Any) -> Any:
    """Make `fit` and `evaluate` of a compiled Keras model those of all workers, and return it.

    Batches (`batch_size` in `fit`, or a dataset's) are those of all workers together, so the result is that of one worker.
    """
    if workers() == 1:
        return model
    import trainer

    if Path(str(trainer.__file__)).parent != Path(__file__).parents[2]:
        raise ImportError(f"{trainer.__file__} hides Lockstep's own module of that name. Fix: rename it")
    from trainer.keras_fit.distribute import distribute as apply

    return apply(model)
