"""A run's model, built and tried on the control node before any host is touched: its size, and what it is compiled with."""

from typing import Any

import keras
import tensorflow as tf

from trainer import applying, assembly, global_loss, keras_metrics, step
from trainer import config as configs
from trainer.data.spec import Spec, of_images
from trainer.errors import ConfigError
from trainer.models import own


def examine(section: dict[str, Any], size: list[int], classes: int, spec: dict[str, Any] | None) -> dict[str, Any]:
    """Build the model and, if its function compiled it, trace a step of training and of validation; nothing is computed.

    Args:
        section: the configuration's `model`.
        size: of images, `[height, width, channels]`.
        classes: number of classes of images.
        spec: of the examples, as JSON; None: images with classes.

    Returns:
        `total` and `trainable` parameters, and `compiled`: None, or what the user is told of a compiled model.

    Raises:
        ConfigError: it can't be built, trained or saved.
    """
    examples = of_images(size) if spec is None else Spec.from_json(spec)
    model, compiled = assembly.build_model(configs.build({"model": section, "data": {"image_size": size}}), classes, examples)
    optimizers = _try(section, model, examples) if compiled else []
    own.check_reopens(section, model)
    trainable = sum(int(variable.value.shape.num_elements()) for variable in model.trainable_variables)
    return {"total": model.count_params(), "trainable": trainable, "compiled": _described(model, optimizers) if compiled else None}


def _try(section: dict[str, Any], model: keras.Model, spec: Spec) -> list[str]:
    """Trace both kinds of step as a worker would; the optimizers that train, by class.

    An error in a step names the line in the user's file, or Keras' reason.
    """
    examples, optimizers = step.rows(spec), dict[int, str]()

    def note(optimizer: Any, gradients: list[Any], variables: list[Any] | None, apply: Any) -> None:
        optimizers[id(optimizer)] = type(optimizer).__name__
        apply(optimizer, gradients, variables)

    with own.explaining("training", section), applying.instead(note):
        tf.function(model.train_step, autograph=False).get_concrete_function(examples)
    if not keras_metrics.states(model) and not global_loss.overridden(model):
        raise ConfigError(f"model={section['file']}:{section['function']}: it has no loss; give compile(loss=...)")
    if keras_metrics.validates(model):
        with own.explaining("validation", section):
            tf.function(model.test_step, autograph=False).get_concrete_function(examples)
    return list(optimizers.values())


def _described(model: keras.Model, optimizers: list[str]) -> dict[str, Any]:
    """What it is compiled with, in words for the plan; a step of its own may use other optimizers than the compiled one."""
    return {
        "optimizer": ", ".join(optimizers) or None,
        "loss": None if model.loss is None else _named(model.loss),
        "metrics": list(model.get_metrics_result()),
        "own": global_loss.overridden(model),
        "validates": keras_metrics.validates(model),
    }


def _named(loss: Any) -> str:
    if isinstance(loss, dict):
        return ", ".join(f"{name}: {_named(one)}" for name, one in loss.items())
    if isinstance(loss, (list, tuple)):
        return ", ".join(map(_named, loss))
    return loss if isinstance(loss, str) else str(getattr(loss, "name", None) or getattr(loss, "__name__", type(loss).__name__))
