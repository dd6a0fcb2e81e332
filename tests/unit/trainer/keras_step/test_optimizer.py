"""Every optimizer by its name, on one device and on two of one worker, against Keras' own `apply`; gradients that are too long."""

import pytest
import tensorflow as tf

from control.common.configurations import OPTIMIZERS
from tests.unit import forked
from trainer.keras_step import optimizer

SCRIPT = """
import json
from trainer.worker import process
process.quiet_tensorflow()
import keras
import numpy as np
import tensorflow as tf
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
from trainer.keras_step import optimizer
from trainer.network.cluster import Cluster
from control.common.configurations import OPTIMIZERS
from trainer.config.schema import Optimizer
from trainer.network.member import Member

clusters = [Cluster(Member(0, ["alone"]), 1, devices) for devices in (("CPU:0",), ("CPU:0", "CPU:1"))]
STEPS, SHAPES = 4, [(6, 3), (3,)]
random = np.random.default_rng(0)
starts = [random.normal(size=shape).astype(np.float32) for shape in SHAPES]
gradients = [[random.normal(size=shape).astype(np.float32) for shape in SHAPES] for _ in range(STEPS)]
KINDS = {name.lower(): kind for name, kind in vars(keras.optimizers).items()}
FIRST = {"sgd": {"momentum": 0.9}}

def weights(constrained):
    variables = [keras.Variable(start) for start in starts]
    variables[0].constraint = keras.constraints.MaxNorm(0.5) if constrained else None
    return variables

def by_keras(name, constrained):
    variables = weights(constrained)
    made = KINDS[name](0.5, weight_decay=0.05, global_clipnorm=2.0, **FIRST.get(name, {}))
    made.learning_rate = 0.02
    for step in gradients:
        made.apply([tf.constant(one) for one in step], variables)
    return [variable.numpy() for variable in variables]

def by_us(name, cluster, constrained):
    with cluster.scope():
        variables = weights(constrained)
        rule = optimizer.make_rule(Optimizer(name=name, learning_rate=0.5, weight_decay=0.05, clip_norm=2.0), variables)

    @tf.function
    def call(several, rate):
        def step(index):
            cluster.run(lambda: rule.apply([one[index] for one in several], rate), ())
            return index + 1

        tf.while_loop(lambda index: index < STEPS, step, [0])

    call([tf.constant(np.stack(one)) for one in zip(*gradients)], tf.constant(0.02))
    return [[part.numpy() for part in cluster.strategy.experimental_local_results(variable.value)] for variable in variables]

found = {}
for case in (*OPTIMIZERS, "sgd constrained", "adamw constrained", "lion constrained"):
    name, _, constrained = case.partition(" ")
    expected, far = by_keras(name, constrained), []
    for cluster in clusters:
        for copies, one in zip(by_us(name, cluster, constrained), expected):
            far += [float(np.abs(copy - one).max()) for copy in copies]
    found[case] = max(far) if np.isfinite(far).all() else "not finite"
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def far():
    """By name: the largest difference of any weight."""
    return forked.answer(SCRIPT)


@pytest.mark.parametrize("case", [*OPTIMIZERS, "sgd constrained", "adamw constrained", "lion constrained"])
def test_every_optimizer_updates_as_keras_does(far, case):
    assert far[case] < 2e-6


@pytest.mark.parametrize(("longest", "factor"), [(10.0, 1.0), (5.0, 1.0), (2.5, 0.5)])
def test_only_longer_gradients_are_shortened(longest, factor):
    """Their norm over all of them is 5."""
    assert float(optimizer._clip_factor([tf.constant([3.0, 0.0]), tf.constant([[4.0]])], longest)) == pytest.approx(factor)


def test_gradients_of_zeros_stay():
    assert float(optimizer._clip_factor([tf.zeros((2,))], 1.0)) == 1.0
