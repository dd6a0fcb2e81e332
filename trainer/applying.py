"""Where any Keras optimizer applies gradients: what happens there instead, while a step is traced."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras.src.optimizers.base_optimizer import BaseOptimizer

from trainer.replacing import replaced

Applied = Callable[[Any, list[Any], list[Any] | None, Callable[..., Any]], Any]
"""`(optimizer, gradients, variables, apply)`: gradients may be None, variables those of the optimizer if None; `apply` is Keras' own."""


@contextlib.contextmanager
def instead(applied: Applied) -> Iterator[None]:
    """Call a function where an optimizer would apply gradients. One that does so inside another's `apply` is left alone."""
    inside = False

    def calling(apply: Callable[..., Any]) -> Callable[..., Any]:
        def called(optimizer: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
            nonlocal inside
            if inside:
                return apply(optimizer, grads, trainable_variables)
            inside = True
            try:
                variables = None if trainable_variables is None else list(trainable_variables)
                return applied(optimizer, list(grads), variables, apply)
            finally:
                inside = False

        return called

    with contextlib.ExitStack() as patched:
        for kind in _defining(BaseOptimizer, "apply"):
            patched.enter_context(replaced(kind, "apply", calling(vars(kind)["apply"])))
        yield


def _defining(kind: type, name: str) -> list[type]:
    """A class and those derived from it that define this method themselves."""
    children: list[type] = kind.__subclasses__()
    below = [other for child in children for other in _defining(child, name)]
    return list(dict.fromkeys(([kind] if name in vars(kind) else []) + below))
