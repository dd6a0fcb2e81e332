"""A run's model, built and tried on the control node before any host is touched: its size, optimizer, loss and metrics."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from control.runs.planning import model_errors
from trainer.checkpoint import starting_weights
from trainer.common.errors import ConfigError
from trainer.config import loading
from trainer.data.spec import Spec, of_images
from trainer.keras_step import gradient_capture, keras_metrics
from trainer.keras_step.optimizer import inner
from trainer.models import user_model
from trainer.models.compiled_model import CompiledModel
from trainer.step import batch_arrays, build_step
from trainer.user_code import callbacks
from trainer.worker.step_timing import random_examples

ROWS = 4
"""Number of examples in a batch with which metrics are tried."""


def examine(
    section: dict[str, Any],
    size: list[int],
    classes: int,
    spec: dict[str, Any] | None,
    own_callbacks: dict[str, str] | None = None,
    weights: dict[str, str] | None = None,
    skip_mismatch: bool = False,
    fed: dict[str, Any] | None = None,
    by_name: bool = False,
    last_layers: int | None = None,
    optimizer_state: bool = False,
) -> dict[str, Any]:
    """Build the model and, if its function compiled it, trace a step of training and of validation; nothing is computed.

    Args:
        section: the configuration's `model`.
        size: of the images, `[height, width, channels]`.
        classes: number of classes of images.
        spec: specification of the examples, as JSON; None: images with classes.
        own_callbacks: `train.callbacks`.
        weights: the section `train.weights`, with the `path` of the file.
        skip_mismatch: `train.skip_mismatch`.
        fed: specification of a step's input, as JSON; None: `spec`.
        by_name: `train.weights_by_name`.
        last_layers: `train.last_layers`.
        optimizer_state: `train.optimizer_state`.

    Returns:
        Parameters, `total` and `trainable`; `compiled`: the plan's description of a compiled model, or None; `left`: layers without weights
        in the file; `takes`: the number of classes whose numbers the loss accepts, or None; `warnings`.

    Raises:
        ConfigError: the model can't be built, trained or saved.
    """
    examples = of_images(size) if spec is None else Spec.from_json(spec)
    with model_errors.explaining("training", section) if section["name"] == user_model.NAME else contextlib.nullcontext():
        given = {"model": section, "data": {"image_size": size}, "train": {"last_layers": last_layers}}
        model, compiled = build_step.build_model(loading.build(given), classes, examples)
    warnings = callbacks.sorted_out(own_callbacks)[1] if own_callbacks else []
    if compiled and CompiledModel(model).overridden(["fit"]):
        warnings.append(
            f"model={section['file']}:{section['function']}: its own fit is not called, but Keras'. Fix: do what it "
            "does in the function that returns the model, or -e script=FILE.py with lockstep.distribute"
        )
    tried = _try(section, model, examples, examples if fed is None else Spec.from_json(fed)) if compiled else ([], False)
    model_errors.check_reopens(section, model)
    left = starting_weights.load(model, Path(weights["path"]), weights, skip_mismatch, by_name, optimizer_state) if weights else []
    trainable = sum(int(variable.value.shape.num_elements()) for variable in model.trainable_variables)
    described, fits = (_described(model, *tried), _fit(section, model, examples)) if compiled else (None, {})
    return {
        "total": model.count_params(),
        "trainable": trainable,
        "compiled": described,
        "left": left,
        **fits,
        "warnings": [*fits.get("warnings", []), *warnings],
    }


def _try(section: dict[str, Any], model: keras.Model, spec: Spec, fed: Spec) -> tuple[list[str], bool]:
    """Trace both kinds of step as a worker would; return the optimizers that train, by class, and whether validation has any result.

    An error in a step names the line in the user's file, or Keras' reason.
    """
    examples, optimizers = batch_arrays.data_signature(spec), dict[int, str]()

    def note(optimizer: Any, gradients: list[Any], variables: list[Any] | None, apply: Any) -> None:
        optimizers[id(optimizer)] = type(optimizer).__name__
        apply(optimizer, gradients, variables)

    with model_errors.explaining("training", section), gradient_capture.instead(note):
        tf.function(model.train_step, autograph=False).get_concrete_function(batch_arrays.data_signature(fed))
    if not CompiledModel(model).metric_states and not CompiledModel(model).overridden():
        raise ConfigError(f"model={section['file']}:{section['function']}: it has no loss; give compile(loss=...)")
    unreduced = any(getattr(loss, "reduction", "sum") in (None, "none") for loss in tf.nest.flatten(model.loss))
    if unreduced and not CompiledModel(model).overridden():
        raise ConfigError(
            f"model={section['file']}:{section['function']}: a loss has reduction=None, a value for each example, and nothing says how "
            "they count together. Fix: reduction='sum_over_batch_size' (their mean) or 'sum'"
        )
    validates = CompiledModel(model).validates(examples)
    if validates:
        with model_errors.explaining("validation", section):
            tf.function(model.test_step, autograph=False).get_concrete_function(examples)
        _check_sums(section, model, spec)
    return list(optimizers.values()), validates


def _fit(section: dict[str, Any], model: keras.Model, spec: Spec) -> dict[str, Any]:
    """Check one output against one `y`, because Keras' losses accept some unintended combinations; returns `takes` and `warnings`."""
    shape, y = getattr(model, "output_shape", None), spec.parts.get("y", ())
    if (
        CompiledModel(model).overridden()
        or not isinstance(model.loss, str | keras.losses.Loss)
        or not isinstance(shape, tuple)
        or len(y) != 1
    ):
        return {}
    loss = keras.losses.get(model.loss)
    known = {"axis": -1, "ignore_class": None, **getattr(loss, "_fn_kwargs", {})}
    if getattr(loss, "fn", loss) is keras.losses.sparse_categorical_crossentropy:
        return {"takes": shape[-1]} if known["axis"] == -1 and known["ignore_class"] is None else {}
    # Keras compares them in this way: one number per example is a list of length 1.
    given, output = (sides if len(sides) > 1 else (*sides, 1) for sides in ((None, *y[0].shape), shape))
    spread = len(given) == len(output) and any({1} < {one, other} for one, other in zip(given, output, strict=True) if one and other)
    if not spread or not getattr(loss, "fn", loss).__module__.startswith("keras."):
        return {}
    return {
        "warnings": [
            f"model={section['file']}:{section['function']}: its output is {_sides(output)} for each example and y is {_sides(given)}; the "
            f"loss {_named(model.loss)} compares each number of one with the only one of the other. Fix, unless it is meant: one shape"
        ]
    }


def _sides(shape: Sequence[int | None]) -> str:
    return str(list(shape[1:])).replace("None", "?")


def _check_sums(section: dict[str, Any], model: keras.Model, spec: Spec) -> None:
    """Refuse a metric whose state after two batches is not the sum of its states after each: workers' states are added up."""
    halves = [spec.pack([leaf[half] for leaf in spec.unpack(random_examples(spec, 2, (2, ROWS)))]) for half in range(2)]
    # The model may accept no random examples; its steps have been traced in any case.
    with model_errors.explaining("validation", section), contextlib.suppress(tf.errors.OpError):
        keras_metrics.check_sums(model, halves, f"model={section['file']}:{section['function']}")


def _described(model: keras.Model, optimizers: list[str], validates: bool) -> dict[str, Any]:
    """Description of a compiled model for the plan; the model's own step may use other optimizers than the compiled one."""
    return {
        "optimizer": ", ".join(optimizers) or None,
        "learning_rate": _rate(model.optimizer),
        "loss": None if model.loss is None else _named(model.loss),
        "metrics": list(model.get_metrics_result()),
        "own": CompiledModel(model).overridden(),
        "scales_loss": build_step.scales_loss(model.optimizer),
        "accumulates": bool(getattr(model.optimizer, "gradient_accumulation_steps", None)),
        "validates": validates,
    }


def _rate(optimizer: keras.optimizers.Optimizer | None) -> float | None:
    """Initial learning rate of an optimizer; None if the optimizer's own schedule decides."""
    rate = getattr(inner(optimizer), "_learning_rate", None)
    return float(f"{float(rate):.6g}") if isinstance(rate, keras.Variable) else None


def _named(loss: Any) -> str:
    if isinstance(loss, dict):
        return ", ".join(f"{name}: {_named(one)}" for name, one in loss.items())
    if isinstance(loss, (list, tuple)):
        return ", ".join(map(_named, loss))
    return loss if isinstance(loss, str) else str(getattr(loss, "name", None) or getattr(loss, "__name__", type(loss).__name__))
