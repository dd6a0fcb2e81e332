"""Several devices a worker, and mixed precision: two logical CPUs, in a process of their own."""

import pytest

from tests.unit import forked

SCRIPT = """
import dataclasses, json
from trainer.worker import process
process.quiet_tensorflow()
import numpy as np
import tensorflow as tf
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
from trainer.step import batch_arrays, build_step, worker_step
from trainer.network.cluster import Cluster
from trainer.network.member import Member
from trainer.common.errors import ClusterError
from trainer.config.schema import Config, Optimizer, Reduction, Train

both = Cluster(Member(0, ["alone"]), 1, ("CPU:0", "CPU:1"))
alone = Cluster(Member(0, ["alone"]), 1, ("CPU:0",))
MODEL = {"name": "deep_cnn", "filters": 2, "stages": 1}

def train(cluster, reduction=Reduction("packed"), clip=None, precision="float32", apart=False):
    optimizer = Optimizer(learning_rate=0.01, weight_decay=0.1, clip_norm=clip)
    config = Config(model=MODEL, train=Train(precision=precision), optimizer=optimizer, reduction=reduction)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, image_size=(8, 8, 1)))
    local = build_step.build_local(cluster, config, 3)
    model = local.model
    parts = build_step.assemble(local, config, reduction)
    call = worker_step.ProfiledCall(parts) if apart else worker_step.make_train_call(parts)
    rows, random = [], np.random.default_rng(0)
    for batch in (5, 5, 1, 4):
        images = random.integers(0, 256, (1, batch, 8, 8, 1), dtype=np.uint8)
        labels = random.integers(0, 3, (1, batch)).astype(np.int32)
        found = call(batch_arrays.full((images, labels))._replace(asks=np.float32(1)), np.full(1, 0.01, np.float32))
        rows.append((found[0] if apart else found.numpy())[0].tolist())
    copies = [[part.numpy() for part in cluster.strategy.experimental_local_results(weight.value)] for weight in model.variables]
    same = all(one.tobytes() == other.tobytes() for one, *others in copies for other in others)
    return np.concatenate([one.ravel() for one, *_ in copies]), rows, same, parts, model

reference, rows, _, _, model = train(alone)
small = dataclasses.replace(Config().data, image_size=(8, 8, 1))
first = build_step.build_local(alone, Config(model=MODEL, data=small), 3).model
start = np.concatenate([weight.numpy().ravel() for weight in first.variables])
found = {"devices": [alone.devices, both.devices], "moved": float(np.abs(reference - start).max()), "rows": {"alone": rows}}
powersgd = Reduction("powersgd", rank=5, max_rank=5, min_elements=400, dtype="float32")
ways = {"packed": {}, "half": {"reduction": Reduction("half")}, "powersgd": {"reduction": powersgd}, "apart": {"apart": True}}
for name, options in ways.items():
    weights, rows, same, parts, _ = train(both, **options)
    found[name] = {"far": float(np.abs(weights - reference).max()), "same": same}
    found["rows"][name] = rows
    if name == "powersgd":
        found["memory"] = [list(array.shape) for array in parts.memory]
        before = [array.numpy() for array in parts.memory]
        found["differs"] = float(np.abs(before[0][0] - before[0][1]).max())
        parts.memory[0].assign(before[0][::-1])
        found["assigned"] = bool((parts.memory[0].numpy() == before[0][::-1]).all())
for cluster, transport in ((both, "direct"), (both, "auto"), (alone, "direct")):
    try:
        cluster.connect(transport)
        found.setdefault("connect", []).append("")
    except ClusterError as error:
        found.setdefault("connect", []).append(str(error))
try:
    Cluster(Member(0, ["alone"]), 1, gpus=2)
except ClusterError as error:
    found["gpus"] = str(error)
clipped = train(alone, clip=0.05)[0]
found["clipped"] = [float(np.abs(train(both, clip=0.05)[0] - clipped).max()), float(np.abs(clipped - reference).max())]
mixed = train(alone, precision="mixed_bfloat16")
found["mixed"] = {"far": float(np.abs(mixed[0] - reference).max()), "rows": mixed[1]}
found["mixed"]["both"] = float(np.abs(train(both, precision="mixed_bfloat16")[0] - mixed[0]).max())
found["mixed"]["kinds"] = sorted({weight.dtype for weight in mixed[4].variables}), mixed[4].layers[1].compute_dtype

def exchanged(rows):
    results = both.group.concatenated([rows])[0], both.group.sum([rows, rows[:1, 0]])[0]
    found["shapes"] = [result.shape.as_list() for result in results]
    return results

exchange = tf.function(lambda rows: both.local(both.run(exchanged, [rows])), [tf.TensorSpec([None, 3])], autograph=False)
found["exchanged"] = [result.numpy().tolist() for result in exchange(tf.constant([[1.0, 2.0, 3.0]]))]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def actual():
    return forked.answer(SCRIPT)


@pytest.mark.parametrize(("name", "tolerance"), [("packed", 1e-5), ("half", 1e-3), ("powersgd", 1e-4), ("apart", 1e-5)])
def test_two_devices_end_with_the_weights_of_one(actual, name, tolerance):
    """And with its sums, though a batch of one image leaves one device without."""
    assert actual["moved"] > 100 * 1e-5
    assert actual[name]["same"]
    assert actual[name]["far"] < tolerance
    for mine, theirs in zip(actual["rows"][name], actual["rows"]["alone"], strict=True):
        stop, images, loss, *counts = mine
        assert stop == 2 * theirs[0] == 2
        assert loss == pytest.approx(theirs[2], rel=1e-2)
        assert (images, counts) == (theirs[1], theirs[3:])


def test_several_devices_do_not_send_from_processors_memory(actual):
    refused, *fine = actual["connect"]
    assert (actual["devices"], fine) == ([1, 2], ["", ""])
    assert refused == (
        "reduction.transport=direct sends from a processor's memory, and a worker here has GPUs or several devices; "
        "leave it at auto, or set reduction.transport=tensorflow"
    )
    assert actual["gpus"] == (
        "gpus=2: TensorFlow finds 0 on this host. Its Python must have CUDA's libraries (provision.yml installs them where the inventory "
        "says gpus: N), and nvidia-smi there must list as many"
    )


def test_what_devices_exchange_keeps_its_shapes(actual):
    """Where their number is not known: else Keras' losses take y for another shape than the output."""
    assert actual["shapes"] == [[None, 3], [None, 3]]
    assert actual["exchanged"] == [[[1.0, 2.0, 3.0]] * 2, [[2.0, 4.0, 6.0]]]


def test_each_device_has_a_memory_of_its_own(actual):
    assert actual["memory"] == [[2, 32, 128], [2, 128, 5], [2, 32, 4]]
    assert actual["differs"] > 0
    assert actual["assigned"]


def test_clipping_comes_after_the_sum(actual):
    far, moved = actual["clipped"]
    assert far < 1e-5
    assert moved > 1e-3


def test_mixed_precision_keeps_weights_in_32_bits(actual):
    """Mixed precision computes in 16 bits and keeps weights in 32."""
    mixed = actual["mixed"]
    assert mixed["kinds"] == [["float32"], "bfloat16"]
    assert 0 < mixed["far"] < 0.01
    assert mixed["both"] < 2e-3
    assert mixed["rows"][0][0] == pytest.approx(actual["rows"]["alone"][0][0], rel=0.05)
