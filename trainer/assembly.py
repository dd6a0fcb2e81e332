"""Model, optimizer and reduction, put together under a cluster's strategy."""

import keras

from trainer import models, optimizer, reduction, step
from trainer.cluster import Cluster
from trainer.config import Config, Reduction
from trainer.reduction import Method, Setting, chain


def build_model(cluster: Cluster, config: Config, classes: int) -> keras.Model:
    """A configuration's model with its first weights, the same on all workers."""
    keras.config.set_dtype_policy(config.train.precision)
    keras.utils.set_random_seed(config.seed % 2**32)
    with cluster.strategy.scope():
        return models.build(config.model, config.data.image_size, classes)


def assemble(cluster: Cluster, config: Config, model: keras.Model, chosen: Reduction) -> tuple[step.Parts, Method]:
    """The parts of a training step.

    Args:
        cluster: connected, if several workers train.
        config: for the optimizer and the seed.
        model: of `build_model`.
        chosen: how gradients are sent; its name is none of `auto`.
    """
    setting = Setting(cluster.strategy.num_replicas_in_sync, cluster.direct is not None, cluster.threads, config.seed)
    with cluster.strategy.scope():
        method = reduction.make(chosen, step.shapes(model), setting)
        rule = optimizer.make(config.optimizer, model.trainable_variables, method.low_rank, cluster.threads)
    return step.Parts(cluster, model, rule, chain.make(method, cluster.all_reduce, cluster.direct)), method
