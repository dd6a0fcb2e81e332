"""A step in one call and profiled: the same weights bit for bit. TensorFlow runs once, in a process of its own."""

import json

import numpy as np
import pytest

from tests.unit import forked
from trainer.step.step_sums import SAVE, STOP, StepSums

SCRIPT = """
import itertools, json
from trainer.worker import process
process.quiet_tensorflow()
from trainer.network.array_group import digest
from trainer.network.cluster import Cluster
from trainer.network.member import Member
from trainer.network.sockets_all_reduce import aligned
cluster = Cluster(Member(0, ["alone"]), 1)
import keras
import numpy as np
import tensorflow as tf
from trainer.network import all_reduce
from trainer.config import schema
from trainer.keras_step import optimizer
from trainer import models, reduction
from trainer.step import batch_arrays, worker_step
from trainer.data.spec import of_images
from trainer.reduction.method import Method, Setting
from trainer.reduction import chain, selection

class Nobody:
    # What one worker alone sums, in one of two sets of arrays in turn, as a Route gives them.
    def __init__(self):
        self.sets = {}
    def all_reduce(self, arrays):
        key = tuple((array.shape, array.dtype.char) for array in arrays)
        if key not in self.sets:
            self.sets[key] = itertools.cycle([[aligned(array.shape, array.dtype) for array in arrays] for _ in range(2)])
        sums = next(self.sets[key])
        for total, array in zip(sums, arrays):
            total[...] = array
        return sums

def parts(choose, clip=None):
    keras.utils.set_random_seed(1)
    with cluster.scope():
        model = models.build({"name": "deep_cnn", "filters": 2, "stages": 1}, (8, 8, 1), 3)
        method = choose(worker_step.shapes(model))
        rule = optimizer.make_rule(schema.Optimizer(weight_decay=0.1, clip_norm=clip), model.trainable_variables, method.low_rank)
    nobody = Nobody()
    local = worker_step.Local(cluster, worker_step.compile_classifier(model), of_images((8, 8, 1)))
    return worker_step.Parts(local, rule, chain.make_chain(method, all_reduce.OnHost(nobody).sum, nobody))

def packed(shapes):
    return selection.make_method(schema.Reduction(), shapes, Setting(2))

def twice(shapes):
    def halves(values):
        return values[:2], values[2:]
    return Method([halves, *packed(shapes).computations])

def powersgd(shapes, on_host=True):
    config = schema.Reduction("powersgd", rank=5, max_rank=5, min_elements=400, dtype="float32")
    return selection.make_method(config, shapes, Setting(2, on_host))

def train(made, apart):
    random = np.random.default_rng(0)
    split = worker_step.ProfiledCall(made)
    whole, rows, seconds = worker_step.make_train_call(made), [], []
    for batch in (5, 5, 5, 2):
        images = random.integers(0, 256, (1, batch, 8, 8, 1), dtype=np.uint8)
        labels = random.integers(0, 3, (1, batch)).astype(np.int32)
        batches = batch_arrays.full((images, labels))._replace(asks=np.float32(batch == 2)), np.full(1, 0.01, np.float32)
        row, parts = split(*batches) if apart else (whole(*batches).numpy(), None)
        rows.append(row.tolist())
        seconds.append(parts)
    traces = [function.experimental_get_tracing_count() for function in (split._forward_backward, split._apply)]
    state = [variable.value.numpy() for variable in made.local.model.variables] + [slot.numpy() for slot in made.optimizer.slots]
    return {"state": digest(state), "rows": rows, "seconds": seconds, "traces": traces}

found, none = {}, lambda shapes: Method([])
for name, choose in {"none": none, "packed": packed, "twice": twice, "powersgd": powersgd}.items():
    found[name] = [train(parts(choose), apart) for apart in (False, True)]
def rows_of(choose, steps_per_call):
    made, random, rows = parts(choose), np.random.default_rng(0), []
    call, images = worker_step.make_train_call(made), random.integers(0, 256, (16, 5, 8, 8, 1), dtype=np.uint8)
    labels = random.integers(0, 3, (16, 5)).astype(np.int32)
    for first in range(0, 16, steps_per_call):
        part = slice(first, first + steps_per_call)
        rows += call(batch_arrays.full((images[part], labels[part])), np.full(steps_per_call, 0.01, np.float32)).numpy().tolist()
    return rows
found["many"] = {name: [rows_of(choose, steps) for steps in (1, 4)] for name, choose in {"packed": packed, "powersgd": powersgd}.items()}

sizes = worker_step.shapes(parts(none).local.model)
found["low_rank"] = [sorted(powersgd(sizes, on_host).low_rank) for on_host in (True, False)]

class Table(keras.layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(100, 60), trainable=False)
    def call(self, x):
        return x
table = keras.Sequential([keras.Input((8, 8, 1)), Table(), keras.layers.Flatten(), keras.layers.Dense(100)])
found["table"] = sorted(powersgd(worker_step.shapes(table)).low_rank)

class Counting(keras.layers.Layer):
    def build(self, shape):
        self.seen = self.add_weight(shape=(2, 3), initializer="ones", trainable=False)
    def call(self, x):
        self.seen.assign(self.seen + [[0.25, 1.0, 1e5], [1 / 3, 0.1, 0.0]])
        return x
counting = keras.Sequential([keras.Input((8, 8, 1)), Counting(), keras.layers.Flatten(), keras.layers.Dense(3)])
short = selection.make_method(schema.Reduction("half", dtype="float16"), worker_step.shapes(counting), Setting(2))
rule = optimizer.make_rule(schema.Optimizer(), counting.trainable_variables, short.low_rank)
nobody = Nobody()
local = worker_step.Local(cluster, worker_step.compile_classifier(counting), of_images(counting.input_shape[1:]))
narrow = worker_step.make_train_call(worker_step.Parts(local, rule, chain.make_chain(short, all_reduce.OnHost(nobody).sum, nobody)))
for _ in range(8):
    narrow(batch_arrays.blank(of_images((8, 8, 1))), np.full(1, 0.01, np.float32))
found["counting"] = counting.layers[0].seen.numpy().tolist()

class Behind(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")
    def call(self, x):
        return tf.stop_gradient(x * self.scale)
behind = keras.Sequential([keras.Input((8, 8, 1)), Behind(), keras.layers.Flatten(), keras.layers.Dense(3)])
blank = batch_arrays.blank(of_images((8, 8, 1))).at(0)
local = worker_step.Local(cluster, worker_step.compile_classifier(behind), of_images(behind.input_shape[1:]))
call = worker_step.make_forward_backward_call(local)
found["behind"] = [float(tf.norm(one)) for one in call(blank)[1:]]

def end(choose, clip):
    made = parts(choose, clip)
    train(made, False)
    return np.concatenate([variable.numpy().ravel() for variable in made.local.model.variables])

for name, clip in {"loose": None, "clipped": 0.05}.items():
    whole = end(none, clip)
    found[name] = [float(np.abs(end(choose, clip) - whole).max()) for choose in (powersgd, lambda shapes: powersgd(shapes, False))]
    found[name + "_moved"] = float(np.abs(whole - end(none, None if clip else 0.05)).max())


def kept(policy):
    # Which gradients are replaced by their factors, and whether anybody still asks for the product.
    keras.config.set_dtype_policy(policy)
    model = models.build({"name": "deep_cnn", "filters": 2, "stages": 1}, (8, 8, 1), 3)
    shapes, seen = worker_step.shapes(model), []
    host = chain.make_chain(Method([None], low_rank=dict.fromkeys(range(len(shapes)))), None, Nobody())
    local = worker_step.Local(cluster, worker_step.compile_classifier(model), of_images(model.input_shape[1:]))
    def traced(batch):
        values = local(batch)
        taken = host.take(values)
        assert taken[0] is values[0]
        for shape, one, gradient in zip(shapes, taken[1:], values[1:]):
            if isinstance(one, chain.LowRank):
                seen.append([list(shape), [list(factor.shape) for factor in one], len(gradient.consumers())])
            else:
                assert one is gradient
        return tf.nest.flatten(taken)
    tf.function(traced).get_concrete_function(batch_arrays.signature(local.spec, 0))
    keras.config.set_dtype_policy("float32")
    return seen

found["factors"] = {policy: kept(policy) for policy in ("float32", "mixed_bfloat16")}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def actual():
    done = forked.run("-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    assert "retracing" not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_weights_without_a_gradient_stay(actual):
    scale, kernel, bias = actual["behind"]
    assert scale == kernel == 0 < bias


def test_what_a_model_keeps_is_not_compressed(actual):
    seen, added = np.ones((2, 3), np.float32), np.float32([[0.25, 1.0, 1e5], [1 / 3, 0.1, 0.0]])
    for _ in range(8):
        seen += (seen + added) - seen
    assert actual["counting"] == seen.tolist()
    assert actual["table"] == [0]


@pytest.mark.parametrize("name", ["packed", "powersgd"])
def test_a_call_tells_of_each_of_its_steps(name, actual):
    single, together = actual["many"][name]
    assert together == single
    assert len({tuple(row) for row in single}) == 16


@pytest.mark.parametrize("name", ["none", "packed", "twice", "powersgd"])
def test_apart_or_whole_steps_give_the_same(name, actual):
    """Taken apart or not a step gives the same weights momentum and sums; no shape of a batch is traced again."""
    whole, apart = actual[name]
    assert apart["state"] == whole["state"]
    assert (whole["state"] == actual["none"][0]["state"]) == (name != "powersgd")
    assert apart["rows"] == whole["rows"]
    assert [row[0][1] for row in apart["rows"]] == [5.0, 5.0, 5.0, 2.0]
    assert [row[0][0] for row in apart["rows"]] == [0.0, 0.0, 0.0, 1.0]
    assert apart["traces"] == [1, 1]


def test_fully_connected_layers_give_factors_without_product(actual):
    """Of fully connected layers the factors are taken and nobody asks for the product."""
    assert actual["factors"] == {
        "float32": [[[32, 128], [[None, 32], [None, 128]], 0], [[128, 3], [[None, 128], [None, 3]], 0]],
        "mixed_bfloat16": [],
    }


@pytest.mark.parametrize("name", ["none", "packed", "twice", "powersgd"])
def test_first_step_apart_traces_and_others_are_timed(name, actual):
    """Without a reduction nothing is compressed or sent."""
    first, *others = actual[name][1]["seconds"]
    assert first is None
    assert len(others) == 3
    for seconds in others:
        assert list(seconds) == ["forward_backward", "compression", "all_reduce", "apply"]
        reduced = {seconds.pop(part) > 0 for part in ("compression", "all_reduce")}
        assert reduced == {name != "none"}
        assert min(seconds.values()) > 0


def test_full_rank_powersgd_is_plain_sgd(actual):
    """Of full rank powersgd is plain sgd with and without clipping.

    The gradient of the one large tensor, over 5 images, has a rank of 5 at most.
    """
    assert actual["low_rank"] == [[4], []]
    for name in ("loose", "clipped"):
        assert max(actual[name]) < 1e-5
        assert actual[name + "_moved"] > 1e-3


@pytest.mark.parametrize(("stops", "devices", "expected"), [(0, 0, (False, False)), (3, 0, (True, False)), (0, 2, (False, True))])
@pytest.mark.parametrize("more", [0, 1])
def test_requests_of_workers_stay_apart_in_sums(stops, devices, expected, more):
    total = np.float32((stops + more) * STOP + devices * SAVE)
    assert StepSums(np.array([[7.0, 1.0], [total, 1.0]], np.float32)).requests == (expected[0] or bool(more), expected[1])
