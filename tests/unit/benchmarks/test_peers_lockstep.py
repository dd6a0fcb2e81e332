"""This project among the peers: the table of parts, how parts are counted, and that its variants train."""

import json
import sys
import time

import pytest

from benchmarks.peer_results import peers_results
from benchmarks.peer_results.peer_trials import SYSTEMS
from tests import preloaded
from tests.ports import worker_ports
from tests.project import SLOWEST
from tests.unit import forked
from tests.unit.conftest import ROOT, load_file

for name in ("common", "tensorflow_model"):
    sys.modules.setdefault(name, load_file(ROOT / "benchmarks" / "peers" / f"{name}.py", name))
lockstep = load_file(ROOT / "benchmarks" / "peers" / "lockstep.py", "lockstep")


def result(processor, seconds, **parts):
    calls = [{name: [8 * a, 8 * b] for name, (a, b) in parts.items()}] * 3
    return {"cpu_seconds_step": processor, "seconds_step": seconds, "parts": calls, "settings": {"steps_per_call": 8}}


CELLS = {
    "r1-none-5-lockstep-parts": [result(0.045, 0.13, P=(0.003, 0.014), sums=(0.002, 0.025))] * 2,
    "r2-none-5-lockstep-parts": [result(0.043, 0.12, P=(0.002, 0.012), sums=(0.001, 0.021)), None],
    "r1-none-5-ideal": [result(0.037, 0.1)],
    "r1-1gbit-5-ideal": [result(0.037, 0.1)],
}
MEASUREMENTS = [{"cell": cell, "workers": [{"result": one} for one in results]} for cell, results in CELLS.items()]


def test_parts_are_medians_and_what_is_left_is_tensorflows():
    (table,) = peers_results.parts(MEASUREMENTS)
    assert peers_results.parts(MEASUREMENTS[2:]) == []
    lines = table.splitlines()
    assert lines[0] == "5 workers, links unlimited, milliseconds per step"
    assert [line.split()[-2:] for line in lines[2:]] == [
        ["45.0", "130.0"],
        ["40.0", "-"],
        ["3.0", "14.0"],
        ["2.0", "25.0"],
        ["37.0", "100.0"],
    ]


def test_an_account_counts_processor_time_apart_from_waiting():
    class Work:
        def wait(self, seconds):
            time.sleep(seconds)
            return seconds

        def compute(self):
            sum(range(200_000))
            raise ZeroDivisionError

    book, work = lockstep.Account(), Work()
    book.watch("waiting", Work, "wait")
    book.watch("computing", Work, "compute")
    assert work.wait(0.05) == 0.05
    with pytest.raises(ZeroDivisionError):
        work.compute()
    taken = book.take()
    assert taken["waiting"][0] < 0.05 <= taken["waiting"][1]
    assert taken["computing"][0] > 0
    assert book.take() == {"waiting": [0.0, 0.0], "computing": [0.0, 0.0]}


PROGRAMS = ROOT / "benchmarks" / "peers"
VARIANTS = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import common, lockstep, tensorflow_model
for variant in ("ideal", "in-step", "profiled", "parts"):
    task = common.Task(0, ["127.0.0.1:1"], 8, 16, 1.0, 4, 1, variant, Path("result.json"))
    os.environ["TF_CONFIG"] = tensorflow_model.tf_config(task)
    trained = lockstep.lockstep(task, lockstep.SECTIONS[variant], lockstep.watch() if variant == "parts" else None)
    assert 0 < trained.run(common.CHUNK) < 100
    assert common.digest(trained.weights())["weights_sha256"] != trained.before
    print(variant)
"""


def test_every_variant_trains():
    # A process of its own: TensorFlow's threads can be set only once.
    done = forked.run("-c", VARIANTS, str(PROGRAMS))
    assert done.stdout.split() == ["ideal", "in-step", "profiled", "parts"], done.stderr


CELL = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("lockstep", run_name="__main__")
"""


def test_a_cell_of_two_workers_measures_and_trains(tmp_path):
    """Two processes of the program, as a cell starts them; the methods and the batches that two workers measure are chosen, too."""
    first, second = worker_ports(2)
    addresses = f"127.0.0.1:{first},127.0.0.1:{second}"
    given = ["--addresses", addresses, "--steps", "8", "--warm-up", "16", "--batch", "2", "--variant", SYSTEMS["lockstep-balanced"].variant]
    files, log = [tmp_path / "0.json", tmp_path / "1.json"], tmp_path / "log"
    words = [("-c", CELL, str(PROGRAMS), *given, "--rank", str(rank), "--result", str(file)) for rank, file in enumerate(files)]
    workers = [preloaded.logged(one, PROGRAMS, log, forked.ENVIRONMENT) for one in words]
    try:
        assert [worker.wait(240 * SLOWEST) for worker in workers] == [0, 0], log.read_text()
    finally:
        for worker in workers:
            worker.kill()
    results = [json.loads(file.read_text()) for file in files]
    assert results[0]["weights_sha256"] == results[1]["weights_sha256"] != results[0]["weights_before"]
    assert [sum(result["batch"] for result in results), {result["steps"] for result in results}] == [4, {8}]
    assert results[0]["settings"]["reduction"]["name"] in ("packed", "powersgd")
