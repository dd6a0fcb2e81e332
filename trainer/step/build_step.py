"""Model, optimizer and reduction, combined under a cluster's strategy."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras

from trainer import models
from trainer.common.errors import ConfigError
from trainer.config.schema import Config, Reduction
from trainer.data import transform
from trainer.data.spec import Spec, of_images
from trainer.keras_step import optimizer, rehearsal
from trainer.keras_step.mixed_processors import FromChief
from trainer.models.fuse_layers import fuse
from trainer.network.cluster import Cluster
from trainer.reduction import chain, selection
from trainer.reduction.method import Method, Setting
from trainer.step import batch_arrays, image_augmentation, worker_step
from trainer.step.program import Program


def build(
    cluster: Cluster,
    config: Config,
    classes: int,
    spec: Spec,
    warn: Callable[[str], None] = print,
    sample: Callable[[], Any] = lambda: None,
) -> worker_step.Local | Program:
    """Build the steps of a configuration's model with its initial weights, which are equal on all workers.

    A compiled model's steps equal those of one worker: they use a `Program` if a step may be more than the sum of its rows' parts.

    Args:
        cluster: the cluster, connected if several workers train.
        config: the configuration.
        classes: number of classes of a classifier of images.
        spec: specification of the examples.
        warn: shows the user the layers that see the whole batch.
        sample: returns the first batch, perhaps with more padding than necessary; None if there is none yet.

    Raises:
        ConfigError: the model can't be trained here.
    """
    local = build_local(cluster, config, classes, spec)
    if local.l2_in_update or not cluster.on_host:
        return local
    placements = rehearsal.Placements(local.model, cluster, warn)
    local = dataclasses.replace(local, placements=placements)
    by_rows = placements.by_rows(local.model.train_step)
    adds_up = placements.adds_up(by_rows, batch_arrays.data_signature(local.spec), sample)
    return local if adds_up and not placements.one_by_one else Program(local, by_rows, adds_up)


def build_local(cluster: Cluster, config: Config, classes: int, spec: Spec | None = None) -> worker_step.Local:
    """Build a model with Keras' own `train_step`, as `build` does; `spec`: by default images of the configured size."""
    spec = spec or of_images(config.data.image_size)
    with cluster.scope():
        model, compiled = build_model(config, classes, spec)
    if not (compiled and cluster.member.workers > 1):
        # Keras' own step can have the statistics of all workers' rows.
        fuse(model)
    local = worker_step.Local(cluster, model, transform.spec_of(config, spec), validated=spec, l2_in_update=not compiled)
    if image_augmentation.soft(config):
        local = dataclasses.replace(local, as_validated=functools.partial(image_augmentation.one_hot, classes))
    augment = image_augmentation.make_augmentation(config.augment, config.seed, classes, config.train.label_smoothing)
    return dataclasses.replace(local, augment=augment) if augment else local


def build_model(config: Config, classes: int, spec: Spec) -> tuple[keras.Model, bool]:
    """The model with its initial weights, and whether its function compiled it; otherwise it is compiled as a classifier of images."""
    keras.config.set_dtype_policy(config.train.precision)
    keras.utils.set_random_seed(config.seed % 2**32)
    model = models.build(config.model, config.data.image_size, classes)
    if config.train.last_layers is not None:
        _freeze(model, config.train.last_layers)
    if not model.compiled:
        return worker_step.compile_classifier(model, image_augmentation.soft(config)), False
    worker_step.build(model, spec)
    return model, True


def _freeze(model: keras.Model, last: int) -> None:
    """Freeze all layers with weights except the last ones; a model within the model counts as one layer.

    Raises:
        ConfigError: the model has fewer layers with weights.
    """
    layers = [layer for layer in model.layers if layer.trainable_weights]
    if len(layers) < last:
        raise ConfigError(f"train.last_layers={last}: the model has {len(layers)} layers with weights that train. Fix: at most that many")
    for layer in layers[:-last]:
        layer.trainable = False


def scales_loss(optimizer: Any) -> bool:
    """Return whether an optimizer scales the loss by a factor that changes between steps: mixed precision in float16."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def assemble(local: worker_step.Local, config: Config, chosen: Reduction) -> worker_step.Parts:
    """The parts of a training step; the cluster is connected if several workers train, and the name of `chosen` is not `auto`."""
    cluster = local.cluster
    setting = Setting(cluster.strategy.num_replicas_in_sync, cluster.direct is not None, cluster.threads, config.seed)
    method, rule = method_and_rule(local, config, chosen, setting)
    return worker_step.Parts(
        local, rule, chain.make_chain(method, cluster.group.sum, cluster.direct), FromChief(cluster.group), method.memory
    )


def method_and_rule(local: worker_step.Local, config: Config, chosen: Reduction, setting: Setting) -> tuple[Method, optimizer.Rule]:
    """The reduction and the update rule: the configured rule, or that of a model compiled by its function."""
    variables = local.model.trainable_variables
    with local.cluster.scope():
        method = selection.make_method(chosen, local.shapes, setting)
        if local.l2_in_update:
            return method, optimizer.make_rule(config.optimizer, variables, method.low_rank, local.cluster.threads)
        return method, optimizer.OfKeras(local.model.optimizer, variables, compiled=True)
