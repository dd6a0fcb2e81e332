"""Changes to TensorFlow and Keras, applied after their import, in a script that Lockstep started on several workers.

Modules are only imported here when needed: a script may use neither library, and may have its own module `trainer`.
"""

import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def of_keras(module: Any) -> None:
    """Patch `fit` and the like for models made under MultiWorkerMirroredStrategy, which Keras 3 can't train (see `network.tf_strategy`)."""
    for name in ("fit", "evaluate", "predict"):
        setattr(module.TensorFlowTrainer, name, _distributing(name, getattr(module.TensorFlowTrainer, name)))


def _distributing(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(model: Any, *arguments: Any, **named: Any) -> Any:
        if model._distribute_strategy is None:
            return method(model, *arguments, **named)
        from trainer.keras_fit.distribute import distribute
        from trainer.network.tf_strategy import multi_worker

        if not multi_worker(model):
            return method(model, *arguments, **named)

        return getattr(distribute(model), name)(*arguments, **named)

    return called


def of_strategy(module: Any) -> None:
    """Set a seed for TensorFlow, equal on all workers, unless the script has set one: all must shuffle a dataset alike."""
    kind = module.CollectiveAllReduceStrategy
    begin = kind.__init__

    @functools.wraps(begin)
    def begun(self: Any, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        import tensorflow as tf
        from tensorflow.python.eager import context

        if context.global_seed() is None:
            tf.random.set_seed(_seed())

    kind.__init__ = begun


def _seed() -> int:
    """A number that is equal on all workers of a launch, and differs between launches."""
    secret = Path(os.environ["LOCKSTEP_SECRET"]).read_bytes()
    return int.from_bytes(hashlib.sha256(b"seed" + secret).digest()[:4], "big") >> 1


HOOKS = {
    "keras.src.backend.tensorflow.trainer": of_keras,
    "tensorflow.python.distribute.collective_all_reduce_strategy": of_strategy,
}
"""Functions to call with a module after its import, by the module's name."""
