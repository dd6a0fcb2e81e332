"""Model, optimizer and reduction, combined under a cluster's strategy."""

import keras

from trainer import augmentation, models, optimizer, reduction, step
from trainer.cluster import Cluster
from trainer.config import Config, Reduction
from trainer.models.fused import fuse
from trainer.reduction import Method, Setting, chain


def build_local(cluster: Cluster, config: Config, classes: int) -> step.Local:
    """A configuration's model with its initial weights, the same on all workers, and its augmentation."""
    keras.config.set_dtype_policy(config.train.precision)
    keras.utils.set_random_seed(config.seed % 2**32)
    with cluster.strategy.scope():
        model = step.compile_classifier(models.build(config.model, config.data.image_size, classes))
    fuse(model)
    augment = augmentation.make(config.augment, config.seed)
    return step.Local(cluster, model, augment) if augment else step.Local(cluster, model)


def assemble(local: step.Local, config: Config, chosen: Reduction) -> tuple[step.Parts, Method]:
    """The parts of a training step, whose cluster is connected if several workers train; the name of `chosen` is not `auto`."""
    cluster = local.cluster
    setting = Setting(cluster.strategy.num_replicas_in_sync, cluster.direct is not None, cluster.threads, config.seed)
    with cluster.strategy.scope():
        method = reduction.make(chosen, step.shapes(local.model), setting)
        rule = optimizer.make(config.optimizer, local.model.trainable_variables, method.low_rank, cluster.threads)
    return step.Parts(local, rule, chain.make(method, cluster.all_reduce, cluster.direct)), method
