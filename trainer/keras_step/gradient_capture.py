"""Where any Keras optimizer applies gradients: what happens there instead, while a step is traced. Workers may be threads."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras.src.optimizers.base_optimizer import BaseOptimizer

from trainer.common.patching import replaced

Applied = Callable[[Any, list[Any], list[Any] | None, Callable[..., Any]], Any]
"""`(optimizer, gradients, variables, apply)`: gradients may be None, variables those of the optimizer if None; `apply` is Keras' own."""

_thread, _installing = threading.local(), threading.Lock()


@contextlib.contextmanager
def instead(applied: Applied) -> Iterator[None]:
    """Call a function where an optimizer would apply gradients. One that does so inside another's `apply` is left alone."""
    with _installing:
        for kind in _defining(BaseOptimizer, "apply"):
            if not hasattr(vars(kind)["apply"], "__wrapped__"):
                setattr(kind, "apply", _calling(vars(kind)["apply"]))  # noqa: B010 - of any class
    with replaced(_thread, "applied", applied):
        yield


def _calling(apply: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(apply)
    def called(optimizer: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        applied = getattr(_thread, "applied", None)
        if applied is None:
            return apply(optimizer, grads, trainable_variables)
        variables = None if trainable_variables is None else list(trainable_variables)
        with replaced(_thread, "applied", None):
            return applied(optimizer, list(grads), variables, apply)

    return called


def _defining(kind: type, name: str) -> list[type]:
    """A class and those derived from it that define this method themselves."""
    children: list[type] = kind.__subclasses__()
    below = [other for child in children for other in _defining(child, name)]
    return list(dict.fromkeys(([kind] if name in vars(kind) else []) + below))
