"""Model, optimizer and reduction, combined under a cluster's strategy."""

import keras

from trainer import augmentation, models, optimizer, reduction, step
from trainer.cluster import Cluster
from trainer.config import Config, Reduction
from trainer.data.spec import Spec, of_images
from trainer.models.fused import fuse
from trainer.reduction import Method, Setting, chain


def build_local(cluster: Cluster, config: Config, classes: int, spec: Spec | None = None) -> step.Local:
    """A configuration's model with its initial weights, the same on all workers, and its augmentation.

    Args:
        cluster: the cluster.
        config: the configuration.
        classes: number of classes of a classifier.
        spec: of the examples; default: images of the configured size.
    """
    spec = spec or of_images(config.data.image_size)
    with cluster.strategy.scope():
        model, compiled = build_model(config, classes, spec)
    fuse(model)
    augment = augmentation.make(config.augment, config.seed)
    return step.Local(cluster, model, spec, *([augment] if augment else []), l2_in_update=not compiled)


def build_model(config: Config, classes: int, spec: Spec) -> tuple[keras.Model, bool]:
    """The model with its initial weights, compiled as its function did (then True) or as a classifier of images."""
    keras.config.set_dtype_policy(config.train.precision)
    keras.utils.set_random_seed(config.seed % 2**32)
    model = models.build(config.model, config.data.image_size, classes)
    if not model.compiled:
        return step.compile_classifier(model), False
    step.build(model, spec)
    return model, True


def assemble(local: step.Local, config: Config, chosen: Reduction) -> tuple[step.Parts, Method]:
    """The parts of a training step, whose cluster is connected if several workers train; the name of `chosen` is not `auto`."""
    cluster = local.cluster
    setting = Setting(cluster.strategy.num_replicas_in_sync, cluster.direct is not None, cluster.threads, config.seed)
    method, rule = method_and_rule(local, config, chosen, setting)
    return step.Parts(local, rule, chain.make(method, cluster.all_reduce, cluster.direct)), method


def method_and_rule(local: step.Local, config: Config, chosen: Reduction, setting: Setting) -> tuple[Method, optimizer.Rule]:
    """How gradients are sent, and the update rule: the configured one, or that of a model compiled by its function."""
    variables = local.model.trainable_variables
    with local.cluster.strategy.scope():
        method = reduction.make(chosen, step.shapes(local.model), setting)
        if local.l2_in_update:
            return method, optimizer.make(config.optimizer, variables, method.low_rank, local.cluster.threads)
        return method, optimizer.OfKeras(local.model.optimizer, variables, compiled=True)
