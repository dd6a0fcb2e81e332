"""The parts of benchmarks/gpu_check that need no GPU; all of it on CPUs: tests/docs_commands.py."""

import json
import os
import re
import subprocess
import zipfile
from io import BytesIO

import h5py
import numpy as np
import pytest

from benchmarks.scripts import gpu_check
from benchmarks.scripts.gpu_check import Row, Trial
from control.runs.hosts.inventory_hosts import cluster_hosts, gpu_share
from tests.unit.samples import ROOT

LISTED = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5c8c)
  MIG 1g.10gb     Device  0: (UUID: MIG-11)
GPU 1: Tesla T4 (UUID: GPU-77)
"""


@pytest.mark.parametrize(("listed", "names"), [(LISTED, ["NVIDIA H100 80GB HBM3", "Tesla T4"]), ("No devices found.\n", []), ("", [])])
def test_gpus_that_nvidia_smi_lists(listed, names):
    assert gpu_check.gpus_of(listed) == names


@pytest.mark.parametrize(
    ("answers", "used"),
    [(["100\n", "900\n", "300\n", ""], 800), (["512\n1024\n", "512\n1031\n", ""], 7), (["[N/A]\n"], None), ([""], None)],
)
def test_memory_is_the_most_beyond_the_first(answers, used, monkeypatch):
    left = iter(answers)
    monkeypatch.setattr(gpu_check, "nvidia_smi", lambda *_: next(left))
    monkeypatch.setattr(gpu_check, "POLL_S", 0)
    with gpu_check.Memory() as memory:
        memory._watch.join()
    assert memory.used == used


def snapshot(path, **arrays):
    packed = BytesIO()
    with h5py.File(packed, "w") as file:
        for name, values in arrays.items():
            file[f"layers/{name}/vars/0"] = np.float32(values)
        file["optimizer/vars/0"] = np.float32(len(arrays))
    with zipfile.ZipFile(path, "w") as whole:
        whole.writestr("model.weights.h5", packed.getvalue())
    return path


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"dense": [4, -8], "bias": [1]}, 0),
        ({"dense": [4, -8.5], "bias": [1]}, 0.0625),
        ({"dense": [4, -8], "bias": [1.5]}, 0.5),
        ({"dense": [4, -8]}, float("inf")),
        ({"dense": [4, float("nan")], "bias": [1]}, float("nan")),
    ],
)
def test_weights_differ_relative_to_their_array(other, expected, tmp_path):
    reference = snapshot(tmp_path / "a.keras", dense=[4, -8], bias=[1])
    assert gpu_check.difference(reference, snapshot(tmp_path / "b.keras", **other)) == pytest.approx(expected, nan_ok=True)


def test_two_workers_share_the_first_gpu(tmp_path):
    assert {trial.gpus for trial in gpu_check.trials(1)} == {0, 1, 2}, "a GPU more than there is is refused"
    inventory = Trial("shared", "two", (), 1, 2).inventory(tmp_path, "python")["workers"]
    known = {name: {**inventory["vars"], **own} for name, own in inventory["hosts"].items()}
    members = cluster_hosts(known, list(known))
    assert [gpu_share(members, name) for name in known] == ["0", "0"]


def test_refusals_are_found_in_wrapped_output():
    preflight, refused = (next(trial for trial in gpu_check.trials(1) if trial.name == name) for name in ("preflight", "refused"))
    line = "[FAIL] worker1  GPUs  1 (NVIDIA A100) (limit: at least 2). Fix: install"
    assert re.search(preflight.refused, gpu_check.unwrapped(line))
    assert not re.search(preflight.refused, "[OK] worker1 GPUs 1 (NVIDIA A100) [FAIL] worker1 memory 1 GB (limit: at least 2)")
    assert re.search(refused.refused, gpu_check.unwrapped("  error: gpus=2: TensorFlow\n     finds 1 on this host. Its Python"))


@pytest.mark.parametrize(("output", "line"), [("a\nValueError: b\nc", "ValueError: b"), ("a\n\nb\n\n", "b"), ("", "no output")])
def test_a_failure_is_one_line(output, line):
    assert gpu_check.cause(output) == line


def test_collectives_by_tensorflow_s_own_word():
    log = "I0000 resolver.cc:660] AssignCollectiveType RingReduce\nI0000 resolver.cc:660] AssignCollectiveType RingGather\nelse\n"
    assert (gpu_check.collective(log * 2), gpu_check.collective("")) == ("RingReduce", "")


class Trained(gpu_check.Check):
    """Trainings that have ended, each with these weights."""

    def __init__(self, root, code=0, output="", **weights):
        super().__init__(root, "python", 0)
        self.ended, self.output, self.weights = code, output, weights

    def _train(self, trial, inventory, run):
        folder = gpu_check.project.RUNS / run
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "history.csv").write_text("epoch,images_per_s\n1,5\n2,1234.5\n")
        snapshot(gpu_check.snapshot(folder), bias=self.weights.get(trial.name, [1]))
        return self.ended, self.output


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check.project, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(gpu_check, "nvidia_smi", lambda *_: "")
    return tmp_path


@pytest.mark.parametrize(("bias", "result"), [([1.0005], "ok"), ([1.002], "FAILED: weights differ by more than rounding")])
def test_a_row_is_compared_with_the_cpu_s(bias, result, folder):
    check = Trained(folder, one=bias)
    reference, one = (check.row(trial) for trial in gpu_check.trials(1)[:2])
    assert reference == Row("task_cnn, CPU (gpus: 0)", "ok", 1234.5)
    assert (one.result, one.images_per_s, one.difference) == (result, 1234.5, pytest.approx(bias[0] - 1, rel=1e-3))


@pytest.mark.parametrize(
    ("code", "output", "result"),
    [
        (2, "gpus=1: TensorFlow finds 0 on this host", "ok"),
        (2, "no space left", "FAILED: not refused as expected: no space left"),
        (0, "gpus=1: TensorFlow finds 0 on this host", "FAILED: not refused as expected: gpus=1: TensorFlow finds 0 on this host"),
        (None, "", gpu_check.NOT_RUN),
    ],
)
def test_a_refusal_needs_its_sentence(code, output, result, folder):
    refused = next(trial for trial in gpu_check.trials(0) if trial.name == "refused")
    assert Trained(folder, code, output).row(refused).result == result


def test_nothing_starts_when_the_time_is_over(folder):
    check = gpu_check.Check(folder, "python", 0)
    assert check.row(gpu_check.trials(0)[0]) == Row("task_cnn, CPU (gpus: 0)", gpu_check.NOT_RUN)
    check.clean()
    assert not any((folder / "runs").glob("*"))


def test_only_processes_with_the_folder_are_ended(tmp_path):
    for number, (command, name) in enumerate([("python\0/x/y", "python"), ("tmux\0/x/y", "tmux: server"), ("python\0/x/z", "python")], 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cmdline").write_text(command)
        (tmp_path / str(number) / "comm").write_text(name)
    (tmp_path / "sys").mkdir()
    assert list(gpu_check.processes("/x/y", tmp_path)) == [2]


def test_results_are_a_table_and_json(tmp_path):
    rows = [Row("a", "ok", 1234.5, 2048, 3e-7), Row("b", gpu_check.NOT_RUN)]
    gpu_check.write_results(tmp_path / "new", rows, {"gpus": ["T4"]})
    assert (tmp_path / "new" / "table.md").read_text().splitlines()[2:] == [
        "| a | 1,234 | 2,048 | 3.0e-07 | ok |",
        "| b | - | - | - | not run: no time left |",
    ]
    written = json.loads((tmp_path / "new" / "results.json").read_text())
    assert (written["gpus"], written["rows"][0]["memory_mb"]) == (["T4"], 2048)


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("No devices found.", "nvidia-smi lists no GPU; --cpu tests this program without one"),
        (LISTED, "TensorFlow 2.21.0 of python finds 1 of the 2 GPUs that nvidia-smi lists: an old driver?"),
    ],
)
def test_gpus_that_are_not_found_end_it(listed, message, monkeypatch):
    monkeypatch.setattr(gpu_check, "nvidia_smi", lambda *_: listed)
    monkeypatch.setattr(gpu_check, "tensorflow_gpus", lambda *_: ("2.21.0", 1))
    monkeypatch.setattr(gpu_check.signal, "signal", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["gpu_check.py", "--python", "python"])
    with pytest.raises(SystemExit, match=f"^{re.escape(message)}$"):
        gpu_check.main()


def test_a_python_without_tensorflow_is_named():
    with pytest.raises(SystemExit, match=r"/none/python: TensorFlow can't be imported: .*No such file"):
        gpu_check.tensorflow_gpus("/none/python", float("inf"))


@pytest.mark.parametrize(
    ("nvidia_smi", "message"),
    [
        (None, "gpu_check: nvidia-smi is missing: install NVIDIA's driver (--cpu tests this script without GPUs)\n"),
        ("echo 'no driver is loaded'; exit 9", "gpu_check: nvidia-smi fails: no driver is loaded\n"),
    ],
)
def test_the_script_refuses_a_machine_without_driver(nvidia_smi, message, tmp_path):
    for tool in ("bash", "date", "dirname", "uname"):
        (tmp_path / tool).symlink_to(next(path for folder in os.get_exec_path() if os.path.exists(path := f"{folder}/{tool}")))
    if nvidia_smi:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{nvidia_smi}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    argv = [tmp_path / "bash", ROOT / "benchmarks" / "gpu_check.sh"]
    ended = subprocess.run(argv, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, message)
