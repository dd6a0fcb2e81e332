"""A compiled model's outputs: their names, and what each is trained to predict."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainer.common.patching import replaced
from trainer.data.spec import Spec
from trainer.evaluation import measures

MOST_JUDGED = 20
"""Outputs of a model; a confusion matrix of each fits into memory."""


@dataclass(frozen=True)
class Output:
    """One output."""

    name: str
    tensor: Any
    """`[n, ...]`."""
    goal: measures.Goal | None
    target: int = -1
    """The leaf of an example that the output is compared with, if there is a goal."""
    why: str = ""
    """Why there is no goal."""


def of(model: Any, spec: Spec, nest: Any) -> list[Output]:
    """A compiled model's outputs, in order.

    Args:
        model: built.
        spec: of the examples that it is trained on.
        nest: what it gives for a batch: a symbolic tensor, or a dict or list of them.
    """
    import keras

    # One tensor may be several outputs.
    places = keras.tree.map_structure(lambda _: keras.KerasTensor((None,)), nest)
    applied = _applied(model, spec, places)
    named, placed = _named(model, nest), [place for _, place in _named(model, places)]
    if isinstance(applied, str):
        return [Output(name, tensor, None, why=applied) for name, tensor in named]
    own = [[(loss, target) for loss, target, output in applied if output is place] for place in placed]
    return [_judged(name, tensor, own[number], spec, number) for number, (name, tensor) in enumerate(named)]


def picture(spec: Spec) -> int | None:
    """The leaf of an example that is a picture, `[height, width, 1 or 3]`; None unless exactly one is."""
    shapes = [(spec.leaves.index(leaf), leaf) for leaf in spec.parts["x"]]
    found = [index for index, leaf in shapes if leaf.fixed and len(leaf.shape) == 3 and leaf.shape[2] in (1, 3)]
    return found[0] if len(found) == 1 else None


def _judged(name: str, tensor: Any, own: list[tuple[Any, int]], spec: Spec, number: int) -> Output:
    """An output with its goal, from its losses, each with the leaf of its target."""
    if number >= MOST_JUDGED:
        return Output(name, tensor, None, why=f"only a model's first {MOST_JUDGED} outputs are judged")
    if len(own) != 1:
        return Output(name, tensor, None, why="it has several losses" if own else "it has no loss of its own")
    loss, target = own[0]
    # Of an unknown rank nothing is known.
    shape, expected = tuple(tensor.shape[1:]) if tensor.shape.rank else (None,), spec.leaves[target].shape
    goal = measures.goal(loss, shape, expected)
    why = f"its loss is {measures.loss_name(loss)}, of an output {_shown(shape)} and a target {_shown(expected)}"
    return Output(name, tensor, goal, target, "" if goal else why)


def _shown(shape: tuple[int | None, ...]) -> str:
    """As in `[rows,3]`."""
    return f"[{','.join(['rows', *('?' if side is None else str(side) for side in shape)])}]"


def _applied(model: Any, spec: Spec, nest: Any) -> list[tuple[Any, int, Any]] | str:
    """Each of the model's losses, with the leaf of an example and the output that Keras compares by it; or why that is not known."""
    import keras

    from trainer.models.compiled_model import LOSSES, CompiledModel

    losses = model._compile_loss
    for method in CompiledModel(model).overridden(LOSSES):
        return f"the model has a {method} of its own"
    if losses is None or "y" not in spec.parts:
        return "the model has no loss that compares outputs with y" if losses is None else "the examples have no target"
    try:
        keras.tree.assert_same_structure(losses._y_pred_build_structure, nest)
    except ValueError:
        return "the model's own step gives something else than the model"
    targets, applied = [keras.KerasTensor((None, *leaf.shape), leaf.dtype) for leaf in spec.leaves], list[tuple[Any, int, Any]]()
    places = {id(target): place for place, target in enumerate(targets)}

    def noting(loss: Any) -> Any:
        def note(target: Any, output: Any, _: Any = None) -> float:
            # A loss may also be that of several outputs.
            if id(target) in places:
                applied.append((loss, places[id(target)], output))
            return 0.0

        return note

    noted = [one._replace(loss=noting(one.loss)) for one in losses._flat_losses]
    # Only Keras knows all the ways to give targets and losses to outputs: as one, by name, in order, or for some of the outputs.
    with replaced(losses, "_flat_losses", noted), keras.StatelessScope():
        losses(spec.pack(targets)[1], nest)
    return applied


def _named(model: Any, outputs: Any) -> Iterator[tuple[str, Any]]:
    """Each output with its name: a key, the model's own name of it, or its number."""
    import keras

    names = getattr(model, "output_names", None) or ([model.layers[-1].name] if isinstance(model, keras.Sequential) else ["output"])
    if isinstance(outputs, list | tuple) and len({*names}) == len(outputs):
        outputs = dict(zip(names, outputs, strict=True))
    if isinstance(outputs, dict | list | tuple):
        yield from _flattened("", outputs)
    else:
        yield names[0], outputs


def _flattened(place: str, nest: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(nest, dict):
        for key, part in nest.items():
            yield from _flattened(f"{place}.{key}" if place else str(key), part)
    elif isinstance(nest, list | tuple):
        for number, part in enumerate(nest):
            yield from _flattened(f"{place or 'output'}_{number}", part)
    else:
        yield place, nest
