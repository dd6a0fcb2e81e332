"""Prediction on several devices: parts of a batch, what is timed, the sentence that says why more are or are not faster."""

import json
import re

import numpy as np
import pytest
from PIL import Image

from benchmarks.node import inference as benchmark
from benchmarks.node_results import inference_results
from benchmarks.node_results.passes import grouped
from benchmarks.tasks import plan_inference
from control.common import configurations
from trainer.common.errors import LockstepError

SHAPE = (4, 4, 1)


def make():
    """A small model, with other weights at every call."""
    from keras import Input, Sequential, layers

    return Sequential([Input(SHAPE), layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(3)], name="small")


@pytest.fixture(scope="module")
def replicas():
    return benchmark.Replicas(make, ["/CPU:0"] * 3)


# --- prediction


@pytest.mark.parametrize("batch", [3, 4, 7, 32])
def test_any_number_of_devices_predicts_the_same(replicas, batch):
    images = benchmark._random_images(batch, SHAPE)
    first, *others = (replicas.predictor(count)(images) for count in (1, 2, 3))
    assert first.shape == (batch, 3)
    assert first.dtype == np.float32
    for one in others:
        np.testing.assert_allclose(one, first, rtol=1e-5, atol=1e-6)
    assert len(np.unique(first)) > batch


def test_only_so_many_devices_are_used(monkeypatch):
    placed = []
    device = benchmark.tf.device
    monkeypatch.setattr(benchmark.tf, "device", lambda name: placed.append(name) or device("/CPU:0"))
    replicas = benchmark.Replicas(make, ["a", "b", "c"])
    assert placed == ["a", "b", "c"]
    placed.clear()
    replicas.predictor(2)(benchmark._random_images(4, SHAPE))
    assert placed == ["a", "b"]


@pytest.mark.parametrize("kind", ["CPU", "GPU"])
def test_what_is_measured(kind, monkeypatch):
    device, lines = benchmark.tf.device, []
    monkeypatch.setattr(benchmark.tf, "device", lambda _: device("/CPU:0"))
    monkeypatch.setattr(benchmark, "PASS_S", 0.002)
    actual = benchmark.measure(make, benchmark.Wanted((1, 3), (4, 8), 2), [f"/{kind}:0"] * 4, lines.append)
    assert [actual[key] for key in ("model", "parameters", "kind", "smallest")] == ["small", 51, kind, 3]
    order = [(row["number"], row["batch"], row["devices"]) for row in actual["rows"]]
    assert order == [(1, batch, devices) for batch in (3, 4, 8) for devices in (1, 3)] + [
        (2, batch, devices) for batch in (3, 4, 8) for devices in (3, 1)
    ]
    for batch in (3, 4, 8):
        assert len({row["calls"] for row in actual["rows"] if row["batch"] == batch}) == 1, "all predict the same images"
    assert all(row["seconds"] > 0 and row["calls"] >= 1 and row["cpu_seconds"] >= 0 for row in actual["rows"])
    assert "warm-up: batch 8, devices: 3" in lines
    assert lines[-1] == "round 2 of 2, batch 8"


def test_a_pass_lasts_about_as_long_as_it_is_to(monkeypatch):
    took = iter((0.3, 0.25))
    monkeypatch.setattr(benchmark, "_one_pass", lambda *_: {"seconds": next(took)})
    assert benchmark._warm_up({1: lambda images: images}, np.zeros((2, 1)), lambda _: None) == 4


class Found:
    """As much of TensorFlow as finds devices."""

    def __init__(self, monkeypatch, gpus):
        self.logical, self.threads = [], []
        config = benchmark.tf.config
        monkeypatch.setattr(config.threading, "set_intra_op_parallelism_threads", self.threads.append)
        monkeypatch.setattr(config.threading, "set_inter_op_parallelism_threads", self.threads.append)
        monkeypatch.setattr(config.experimental, "set_memory_growth", lambda *_: None)
        monkeypatch.setattr(config, "list_physical_devices", lambda kind: [kind] * (gpus if kind == "GPU" else 1))
        monkeypatch.setattr(config, "set_logical_device_configuration", lambda _, some: self.logical.extend(some))
        count = {"GPU": lambda: gpus, "CPU": lambda: len(self.logical)}
        monkeypatch.setattr(config, "list_logical_devices", lambda kind: [Device(f"/{kind}:{n}") for n in range(count[kind]())])


class Device:
    def __init__(self, name):
        self.name = name


def test_the_processor_is_cut_into_devices_where_there_is_no_gpu(monkeypatch):
    actual = Found(monkeypatch, gpus=0)
    assert benchmark.open_devices(3, 2) == ["/CPU:0", "/CPU:1", "/CPU:2"]
    assert actual.threads == [2, 3], "a thread that starts operations for each device"


def test_gpus_are_taken_where_there_are_enough(monkeypatch):
    actual = Found(monkeypatch, gpus=4)
    assert benchmark.open_devices(2, 8) == ["/GPU:0", "/GPU:1"]
    assert actual.logical == []
    with pytest.raises(LockstepError, match=r"^devices=5: this host has 4 GPUs; ask for at most as many$"):
        benchmark.open_devices(5, 8)


# --- the sentence


def passes(rates, busy, idle=0.0):
    """`rates`: (devices, batch) -> images/s of each pass; `busy`: devices -> cores; all passes of 10 calls."""
    rows = []
    for (devices, batch), some in rates.items():
        for number, rate in enumerate(some, 1):
            seconds = 10 * batch / rate
            times = {"seconds": seconds, "cpu_seconds": busy[devices] * seconds, "idle_seconds": idle * seconds}
            rows.append({"devices": devices, "batch": batch, "number": number, "calls": 10, **times})
    return rows


PLAIN = ("CPU", 2, 2)
"""Kind of the devices, cores, threads."""
SMALL = {(1, 2): [1000] * 3, (2, 2): [500] * 3}
"""The batch of an image a device: 2 ms on one, 4 ms on two."""


def answer(rates, busy, idle, processor):
    kind, cpus, threads = processor
    timed = {"kind": kind, "threads": threads, "smallest": 2}
    return inference_results._answer(grouped(passes({**SMALL, **rates}, busy, idle), "batch", "devices"), (32, 512), timed, cpus)


def four(one, two, small=(1000, 800)):
    """Rates at batches of 32 and 512."""
    spread = (0.99, 1.0, 1.01)
    values = {(1, 32): small[0], (2, 32): small[1], (1, 512): one, (2, 512): two}
    return {key: [value * part for part in spread] for key, value in values.items()}


FREE = {(1, 2): [500] * 3, (2, 2): [1000] * 3}
"""Two devices of which cutting a batch costs nothing."""
UNSURE = {(1, 512): [1000, 1200, 800], (2, 512): [1100, 900, 1050], **{(count, 32): [1000] for count in (1, 2)}}
CASES = {
    "slower": (four(1000, 900), {1: 1.9, 2: 1.9}, 0.1, PLAIN),
    "faster": (four(1000, 1700), {1: 1.0, 2: 1.8}, 0.9, ("CPU", 2, 1)),
    "unsure": (UNSURE, {1: 1.9, 2: 1.9}, 0.0, PLAIN),
    # The share that is granted counts, not the idle cores of the machine.
    "a share": (four(1000, 900), {1: 0.38, 2: 0.38}, 1.6, ("CPU", 0.38, 1)),
    "free": ({**four(1000, 900), **FREE}, {1: 1.9, 2: 1.9}, 0, PLAIN),
    "GPUs": (four(1000, 1900), {1: 1.0, 2: 1.0}, 0.0, ("GPU", 8, 8)),
}
"""Rates, busy cores by number of devices, idle cores, processor."""


@pytest.mark.parametrize(
    ("case", "part"),
    [
        ("slower", "2 devices are slower than 1 device at a batch of 512, 0.90 times the images/s (0.80 to 0.90 times over all batches): "),
        ("slower", ": 1 device keeps 1.9 of 2 cores busy and leaves 0.1 idle, too little for another; 2 keep 1.9 busy; all share "),
        ("slower", "all share TensorFlow's one pool of 2 threads; and cutting a batch in 2 costs 2.00 ms per call."),
        ("faster", "2 devices predict 1.70 times the images/s of 1 device at a batch of 512 (0.80 to 1.70 times over all batches): "),
        (
            "faster",
            ": 1 device keeps 1.0 of 2 cores busy and leaves 0.9 idle; 2 keep 1.8 busy; all share TensorFlow's one pool of 1 thread; ",
        ),
        ("unsure", "no measurable difference between 2 devices and 1 device at a batch of 512: 1.05 times"),
        ("a share", "1 device keeps 0.4 of 0.38 cores busy and leaves 0.0 idle, too little"),
        ("free", "cutting a batch in 2 has no measurable cost."),
        ("GPUs", ": each device has hardware and memory of its own; cutting a batch in 2 costs 2.00 ms per call."),
    ],
)
def test_the_answer_has_its_reason(case, part):
    assert part in answer(*CASES[case])


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ({(2, 2): [500], (2, 32): [600]}, "Only 2 devices measured: nothing to compare."),
        ({(1, 2): [1000], (2, 2): [500], (1, 32): [100], (2, 32): [900]}, "no measurable difference between 2 devices and 1 device"),
    ],
)
def test_single_passes_are_never_told_apart(rates, message):
    groups = grouped(passes(rates, {1: 1.0, 2: 1.0}), "batch", "devices")
    assert inference_results._answer(groups, (32,), {"kind": "CPU", "threads": 2, "smallest": 2}, 2).startswith(message)


@pytest.mark.parametrize("batches", [(32,), (32, 128, 512)])
def test_the_picture_is_the_same_each_time(batches, tmp_path):
    rates = {(devices, batch): [1000.0 * batch / devices, 1100.0 * batch] for devices in (1, 2, 4) for batch in (4, *batches)}
    timed = {"rows": passes(rates, {1: 1.0, 2: 1.0, 4: 1.0}), "kind": "CPU", "threads": 2, "smallest": 4}
    timed |= {"model": "small", "parameters": 51}
    concluded = inference_results.conclude({"settings": {"batches": batches}, "of": "a new model"}, timed, 4)
    assert {group["batch"] for group in concluded.groups} == set(batches)
    assert len(concluded.record["results"]) == 3 * (1 + len(batches))
    assert concluded.table().split()[:5] == ["batch", "devices", "ms", "per", "call"]
    for name in ("a.png", "b.png"):
        concluded.draw("node01: Cortex-A72, 4 cores", tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size == (960, 630)
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 50, "not an empty canvas"


# --- the plan


@pytest.fixture
def runs(tmp_path):
    """A run of two epochs that started, and one that only was planned."""
    for name, files in (("old", ["cluster.json", "checkpoints/epoch-0001.keras", "checkpoints/epoch-0002.keras"]), ("new", [])):
        for file in ["config.yml", *files]:
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("model: {name: deep_cnn}\n" if file == "config.yml" else "{}")
    return tmp_path


@pytest.mark.parametrize("options", [{"run": "old"}, {}])
def test_a_run_predicts_with_its_last_snapshot(runs, options):
    assert plan_inference._model_of(options, runs) == {
        "of": "epoch 2 of run old",
        "snapshot": str(runs / "old/checkpoints/epoch-0002.keras"),
        "config_yaml": configurations.rewritten(runs / "old/config.yml"),
    }


def test_a_new_model_where_there_is_no_run_or_when_asked_for(runs):
    first = plan_inference._model_of({}, runs / "nowhere")
    assert (first["of"], first["snapshot"]) == ("a new lecture_cnn of configuration lecture_cnn", None)
    asked = plan_inference._model_of({"config": "deep_cnn", "set": "model.filters=16"}, runs)
    assert asked["of"] == "a new deep_cnn of configuration deep_cnn"
    assert "filters: 16" in asked["config_yaml"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"run": "old", "config": "deep_cnn"}, "run=old, config=deep_cnn: give one of them, a trained model or a new one"),
        ({"run": "old", "set": "seed=2"}, "set=seed=2: a run's snapshot is taken as it is; give config=NAME for a new model"),
        ({"run": "new"}, "run=new: none of its snapshots is here; the first is written at the end of epoch 1. Fix: ansible-playbook train"),
        ({"config": "deep"}, "config=deep: "),
        ({"config": "deep_cnn", "set": "model.filtres=2"}, "model.filtres: deep_cnn has no such option"),
    ],
)
def test_what_does_not_go_together(options, message, runs):
    with pytest.raises(LockstepError, match=f"^{re.escape(message)}"):
        plan_inference._model_of(options, runs)


@pytest.mark.parametrize(("snapshot", "model"), [(False, "task_cnn"), (True, "small")])
def test_results_are_written(snapshot, model, tmp_path, monkeypatch):
    make().save(tmp_path / "model.keras")
    (tmp_path / "config.yml").write_text("model: {name: task_cnn}\n")
    monkeypatch.setattr(benchmark, "open_devices", lambda most, threads: ["/CPU:0"] * most)
    monkeypatch.setattr(benchmark, "PASS_S", 0.001)
    file = tmp_path / "model.keras" if snapshot else None
    benchmark.run(tmp_path / "config.yml", file, benchmark.Wanted((1,), (2,), 1), 3, tmp_path / "out")
    actual = json.loads((tmp_path / "out/results.json").read_text())
    assert (actual["model"], actual["threads"]) == (model, 3)
    assert "starting TensorFlow" in (tmp_path / "out/metrics.jsonl").read_text()
