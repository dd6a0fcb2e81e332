"""Lockstep for a user's script: `import lockstep`, and after `model.compile(...)`: `lockstep.distribute(model)`.

With one worker, or if Lockstep did not start the script, nothing changes and nothing is loaded.
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
    """Number of workers."""
    return len(json.loads(os.environ["TF_CONFIG"])["cluster"].get("worker", [0])) if os.environ.get("TF_CONFIG") else 1


def distribute(model: Any) -> Any:
    """Make `fit` and `evaluate` of a compiled Keras model run on all workers, and return the model.

    A batch (`batch_size` in `fit`, or a dataset's) is divided over all workers, so the result is that of a single worker.
    """
    if workers() == 1:
        return model
    import trainer

    if Path(str(trainer.__file__)).parent != Path(__file__).parents[2]:
        raise ImportError(f"{trainer.__file__} hides Lockstep's own module of that name. Fix: rename it")
    from trainer.keras_fit.distribute import distribute as apply

    return apply(model)
