"""What a model keeps and draws while it trains: means of batches, dropped outputs; penalties, and soft labels. TensorFlow runs once."""

import pytest

from tests.unit import forked

SCRIPT = """
import json
from trainer.worker import process
process.quiet_tensorflow()
import keras
import numpy as np
import tensorflow as tf
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
from trainer.keras_step import optimizer
from trainer.step import batch_arrays, build_step, worker_step
from trainer.config import loading, schema as configs
from trainer.network.array_group import digest
from trainer.network.cluster import Cluster
from trainer.data.spec import of_images
from trainer.network.member import Member
from trainer.models import fuse_layers
from trainer.models.compiled_model import CompiledModel
from trainer.reduction.method import LowRank

alone, both = (Cluster(Member(0, ["alone"]), 1, devices) for devices in (("CPU:0",), ("CPU:0", "CPU:1")))
random = np.random.default_rng(0)
IMAGES = random.integers(0, 256, (3, 12, 8, 8, 1), dtype=np.uint8)
LABELS = random.integers(0, 3, (3, 12)).astype(np.int32)
SMALL = {"data": {"image_size": [8, 8, 1]}, "reduction": {"name": "packed"}}

def local(cluster, model="fashion_cnn", **sections):
    return build_step.build_local(cluster, loading.build({**SMALL, "model": {"name": model}, **sections}), 3)

def train(cluster, apart=False, first=0, **sections):
    config = loading.build({**SMALL, "model": {"name": "fashion_cnn"}, **sections})
    made = build_step.build_local(cluster, config, 3)
    parts = build_step.assemble(made, config, config.reduction)
    call = worker_step.ProfiledCall(parts) if apart else worker_step.make_train_call(parts)
    feed = batch_arrays.full((IMAGES, LABELS))
    for index in range(3):
        one = feed.at(slice(index, index + 1))
        one = one._replace(number=one.number + np.int32(first))
        rows = call(one, np.full(1, 0.01, np.float32))
    rows = rows[0] if apart else rows.numpy()
    weights = [weight.value.numpy() for weight in made.model.weights]
    return {"digest": digest(weights + [slot.numpy() for slot in parts.optimizer.slots]), "rows": rows.tolist()}, made

adam = {"optimizer": {"name": "adam", "weight_decay": 0.1, "clip_norm": 1.0}}
varied = {"augment": {"crop": 2, "flip": True}}
clipped = {"optimizer": {"clip_norm": 1.0, "weight_decay": 0.1}}
dry = {"model": {"name": "resnet_cifar", "layers": 8}}
cases = {"plain": {}, "clipped": clipped, "adam": adam, "varied": varied, "later": {"first": 7}, "dry": dry}
found = {name: [train(alone, apart, **case)[0] for apart in (False, True)] for name, case in cases.items()}

# Statistics of three workers' uneven parts, and of none
made = local(alone)
def parts_of(first, last, weights=1.0, total=12):
    one = batch_arrays.full((IMAGES[:1, first:last], LABELS[:1, first:last]), total).at(0)
    return made(one._replace(weights=one.weights * np.float32(weights)))
kept = len(CompiledModel(made.model).statistics)
before = [variable.numpy() for variable in CompiledModel(made.model).statistics]
pieces = [[value.numpy() for value in parts_of(*cut)[-kept:]] for cut in ((0, 6), (6, 8), (8, 12))]
alone_each = [[value.numpy() for value in parts_of(*cut, total=cut[1] - cut[0])[-kept:]] for cut in ((0, 6), (6, 8), (8, 12))]
weighted = [sum(share * piece[number] for share, piece in zip((6 / 12, 2 / 12, 4 / 12), alone_each)) for number in range(kept)]
found["weighted"] = max(float(np.abs(sum(piece[number] for piece in pieces) - weighted[number]).max()) for number in range(kept))
found["moves"] = float(np.abs(weighted[0]).max())
found["stand-in"] = max(float(np.abs(value).max()) for value in parts_of(0, 1, 0.0)[-kept:])
after = [variable.numpy() for variable in CompiledModel(made.model).statistics]
found["untouched"] = all((one == other).all() for one, other in zip(before, after))

# Two devices: their copies of everything are the same after training, and the means are those of their parts
_, made = train(both)
copies = [[part.numpy() for part in both.strategy.experimental_local_results(weight.value)] for weight in made.model.weights]
found["same"] = all(one.tobytes() == other.tobytes() for one, *others in copies for other in others)
def masks(batch):
    with keras.StatelessScope(worker_step.Local(both, made.model, made.spec)._seeds(batch)):
        return made.model.layers[-3](tf.ones([4, 600]), training=True)
def drawn(number):
    run = tf.function(lambda batch: both.strategy.run(masks, args=(batch,)))
    batch = batch_arrays.full((IMAGES[:1], LABELS[:1])).at(0)._replace(number=np.int32(number))
    return [part.numpy() for part in both.strategy.experimental_local_results(run(batch))]
one, again, next_one = drawn(3), drawn(3), drawn(4)
alike = [bool((one[0] == other).all()) for other in (again[0], one[1], next_one[0])]
found["masks"] = [*alike, float((one[0] == 0).mean())]

# Soft labels and weights of classes: uneven parts add up to the gradient of the loss over the whole batch
def soft(weigh, **sections):
    train = {"label_smoothing": 0.2, "class_weight": {"0": 3.0, "2": 0.5} if weigh else None}
    made = local(alone, model="lecture_cnn", train=train, **sections)
    made.model.layers[-1].kernel.assign(random.normal(size=made.model.layers[-1].kernel.shape))
    return made
def sum_of(made, whole, *cuts):
    def piece(first, last):
        data = tf.nest.map_structure(lambda array: array[first:last], whole.data)
        return made(whole._replace(data=data, weights=whole.weights[first:last], places=whole.places[first:last]))
    parts = [[tf.convert_to_tensor(value).numpy() for value in piece(*cut)] for cut in cuts]
    return [sum(values) for values in zip(*parts)]
WEIGHTS = np.float32([3, 1, 0.5])[LABELS]
cases = {"smooth": (soft(False), (IMAGES, LABELS)), "weighed": (soft(True), (IMAGES, LABELS, WEIGHTS))}
flipped = IMAGES[:, ::-1], LABELS[:, ::-1], WEIGHTS[:, ::-1]
pairs = tuple([own, other] for own, other in zip((IMAGES, LABELS, WEIGHTS), flipped))
cases["mixed"] = soft(True, augment={"mixup": 0.4}), pairs
found["soft parts"], found["soft loss"] = {}, {}
for name, (made, data) in cases.items():
    whole = batch_arrays.full(tf.nest.map_structure(lambda array: array[:1], data)).at(0)
    once, thrice = sum_of(made, whole, (0, 12)), sum_of(made, whole, (0, 5), (5, 6), (6, 12))
    found["soft parts"][name] = max(float(np.abs(one - other).max()) for one, other in zip(once, thrice))
    images, labels, *weights = made.augment(whole)
    logits = made.model(images, training=False)
    losses = tf.nn.softmax_cross_entropy_with_logits(labels, logits) * (weights[0] if weights else 1.0)
    found["soft loss"][name] = [float(once[0][2] / once[0][3]), float(tf.reduce_mean(losses))]
made, _ = cases["weighed"]
sums = worker_step.make_test_call(made)((IMAGES[0], LABELS[0]))
plain = tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS[0], made.model(IMAGES[0], training=False))
found["soft validation"] = [float(sums[0] / sums[1]), float(tf.reduce_mean(plain))]

# Adam with low-rank gradients against Keras
def adam_of_factors(steps):
    ours, theirs = (keras.Variable(np.arange(6.0).reshape(2, 3).astype("float32")) for _ in range(2))
    rule, keras_rule = optimizer.make_rule(configs.Optimizer(name="adam"), [ours]), keras.optimizers.Adam(0.1)
    for number in range(steps):
        gradient = np.arange(6.0).reshape(2, 3).astype("float32") - number - 0.5
        left, values, right = np.linalg.svd(gradient, full_matrices=False)
        rule.apply([LowRank(tf.constant(left.T), tf.constant(values[:, None] * right))], tf.constant(0.1))
        keras_rule.apply([tf.constant(gradient)], [theirs])
    return float(np.abs(ours.numpy() - theirs.numpy()).max()), len(rule.slots)
found["adam of factors"] = adam_of_factors(5)

# Penalties: of a step from zero momentum, against the gradient of the whole loss
def punished(clip, on_host):
    keras.utils.set_random_seed(1)
    both_kinds = [keras.layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.3), bias_regularizer=keras.regularizers.L1(0.2))]
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), *both_kinds])
    one, rate = batch_arrays.full((IMAGES[:1], LABELS[:1])).at(0), tf.constant(0.1)
    weights = [variable.value for variable in model.trainable_variables]
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(one.data[1], model(one.data[0]))
        whole = tf.reduce_mean(losses) + tf.add_n(model.losses)
    expected = [weight - rate * gradient for weight, gradient in zip(weights, tape.gradient(whole, weights))]
    rule = optimizer.make_rule(configs.Optimizer(clip_norm=clip), model.trainable_variables, [0] if on_host else [])
    _, *gradients = worker_step.Local(alone, worker_step.compile_classifier(model), of_images(model.input_shape[1:]))(one)
    run = tf.function(lambda: rule.apply(gradients, rate))
    before = [weight.numpy() for weight in weights]
    run()
    moved = float(np.abs(weights[0].numpy() - before[0]).max())
    far = max(float(np.abs(weight.numpy() - value).max()) for weight, value in zip(weights, expected))
    return far, moved, model.layers[-1].kernel_regularizer is not None
found["punished"] = [punished(clip, on_host) for clip in (None, 1e6) for on_host in (False, True)]

# A layer of one's own, which normalises inside, keeps a count of its own and something that nothing changes; and one that is frozen
layers = keras.layers
class Own(layers.Layer):
    def __init__(self):
        super().__init__()
        self.inside = layers.BatchNormalization()
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)
        self.constant = self.add_weight(shape=(), initializer="ones", trainable=False)
    def call(self, inputs, training=None):
        self.calls.assign_add(1)
        return self.inside(inputs, training=training)
def owned(frozen, activity=0.0):
    keras.utils.set_random_seed(1)
    dense = layers.Dense(3, activity_regularizer=keras.regularizers.L2(activity) if activity else None)
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Rescaling(1 / 255), Own(), layers.Flatten(), dense])
    model.layers[1].trainable = not frozen
    return model, worker_step.Local(alone, worker_step.compile_classifier(model), of_images(model.input_shape[1:]))
model, own_local = owned(False)
def short(variable):
    name = variable.path.split("/")[-1]
    return "variable" if "variable" in name else name
found["own"] = [fuse_layers.fuse(model), [short(variable) for variable in CompiledModel(model).statistics]]
one = batch_arrays.full((IMAGES[:1], LABELS[:1])).at(0)
found["own moved"] = [float(np.abs(value.numpy()).max()) for value in own_local(one)[-len(CompiledModel(model).statistics):]]
model, own_local = owned(True)
found["frozen"] = [fuse_layers.fuse(model), len(CompiledModel(model).statistics), len(own_local(one)) - 1 - len(model.trainable_variables)]
model, own_local = owned(False, 0.5)
with tf.GradientTape() as tape:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(one.data[1], model(one.data[0], training=True))
    whole = tf.reduce_mean(losses) + tf.add_n(model.losses)
expected = tape.gradient(whole, model.trainable_variables[-2].value)
def last_kernel(activity):
    model, local = owned(False, activity)
    return local(one)[len(model.trainable_variables) - 1].numpy()
found["activity"] = [float(np.abs(last_kernel(activity) - expected).max()) for activity in (0.5, 0.0)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def actual():
    return forked.answer(SCRIPT)


@pytest.mark.parametrize("case", ["plain", "clipped", "adam", "varied", "later", "dry"])
def test_taken_apart_or_not_step_leaves_same_behind(case, actual):
    whole, apart = actual[case]
    assert apart == whole


def test_every_setting_changes_what_is_left_behind(actual):
    assert len({actual[case][0]["digest"] for case in ("plain", "clipped", "adam", "varied", "later", "dry")}) == 6


def test_uneven_parts_move_means_by_their_share(actual):
    """Uneven parts move the means by their share and a stand in by nothing."""
    assert actual["weighted"] < 1e-6 < actual["moves"]
    assert actual["stand-in"] == 0
    assert actual["untouched"]


def test_two_devices_share_means_and_drop_separately(actual):
    """Two devices keep the same means and drop other outputs."""
    assert actual["same"]
    repeated, between_devices, between_steps, dropped = actual["masks"]
    assert (repeated, between_devices, between_steps) == (True, False, False)
    assert dropped == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize("name", ["smooth", "weighed", "mixed"])
def test_soft_labels_weigh_the_same_anywhere(name, actual):
    """Soft labels and weights of classes count the same whoever computes them."""
    assert actual["soft parts"][name] < 1e-4
    loss, expected = actual["soft loss"][name]
    assert loss == pytest.approx(expected, rel=1e-4)


def test_validation_has_neither_smoothed_labels_nor_weights(actual):
    loss, expected = actual["soft validation"]
    assert loss == pytest.approx(expected, rel=1e-4)


def test_adam_of_factors_is_kerass(actual):
    """Of whole gradients, as every optimizer: `keras_step/test_optimizer.py`."""
    far, slots = actual["adam of factors"]
    assert far < 1e-5
    assert slots == 3


def test_penalties_pull_as_in_the_loss(actual):
    """Penalties pull as if they were in the loss and stay in the model."""
    for far, moved, kept in actual["punished"]:
        assert far < 1e-6
        assert moved > 1e-3
        assert kept


def test_means_inside_own_layers_travel_with_counts(actual):
    fused, names = actual["own"]
    assert (fused, sorted(names)) == (1, ["moving_mean", "moving_variance", "variable", "variable"])
    assert sorted(moved > 0 for moved in actual["own moved"]) == [False, True, True, True]


def test_a_frozen_layer_keeps_what_it_has(actual):
    assert actual["frozen"] == [0, 0, 0]


def test_loss_added_by_a_called_layer_counts(actual):
    with_it, without = actual["activity"]
    assert with_it < 1e-5
    assert without > 1e-3
