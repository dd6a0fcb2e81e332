"""Workers whose processors round differently: threads, of which those after the chief scale what an optimizer is given."""

import json

import keras
import numpy as np
import pytest

from tests.unit import forked
from trainer.keras_step import mixed_processors

STEPS = {
    "by rows": {"rows": 24, "epochs": 2, "optimizer": "Adam", "way": "run"},
    "clipped": {"rows": 24, "epochs": 2, "optimizer": "Lamb", "settings": ["global_clipnorm"], "way": "run", "workers": 3},
    "one by one": {"rows": 24, "epochs": 2, "inputs": ["tokens"], "optimizer": "Adam", "way": "run"},
    "a step of its own": {"rows": 24, "epochs": 2, "step": "own", "optimizer": "Adam", "body": ["mixing"], "way": "run"},
    "a script": {"rows": 24, "epochs": 2, "optimizer": "Adam"},
    "a script's own step": {"rows": 24, "epochs": 2, "optimizer": "Adam", "body": ["mixing"], "step": "own"},
}
WHOLE = {**STEPS["by rows"], "epochs": 3}
SCRIPT = """
import json, os, sys, threading
from tests.oracle.__main__ import SETTINGS
os.environ.update(SETTINGS)
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer
from tests.oracle import comparing
from tests.oracle.programs import of
from trainer.keras_step import mixed_processors
from trainer.rundir.metrics_log import Metrics

steps, whole = json.loads(sys.argv[1])
worker, warnings, found_to_differ = threading.local(), [], [1]
clip = BaseOptimizer._clip_gradients

def clipped(optimizer, gradients):
    return [tf.math.scalar_mul(1 + 2.0**-18 * getattr(worker, "rank", 0), one) for one in clip(optimizer, gradients)]

def differing(workers, _=None):
    worker.rank = workers.member.rank
    return list(found_to_differ)

BaseOptimizer._clip_gradients, mixed_processors.differing = clipped, differing
Metrics.warning = lambda _, text: warnings.append(text)

def apart(program):
    warnings.clear()
    first, *others = comparing.by_workers(of(program))
    names = [name for name in first if not name.startswith("optimizer")]
    return [[name for name in names if any((one[name] != first[name]).any() for one in others)], list(warnings)]

found = {"steps": {name: apart(program) for name, program in steps.items()}}
one, other = (comparing.by_workers(of({**whole, "stop": stop}))[0] for stop in (0, 4))
found["continued"] = [name for name in one if name.startswith(("weight", "optimizer")) and (one[name] != other[name]).any()]
found_to_differ.clear()
found["late"] = apart(whole)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    return forked.answer(SCRIPT, json.dumps([STEPS, WHOLE]))


@pytest.mark.parametrize("name", STEPS)
def test_all_take_the_chiefs_weights(found, name):
    """Weights, history, and what callbacks see are equal, and there is no warning of differences."""
    different, warnings = found["steps"][name]
    assert not different
    assert not any("differed from" in warning for warning in warnings)


def test_differences_found_late_are_mended(found):
    """When the state is saved, and from then on after each step."""
    different, (warning,) = found["late"]
    assert not [name for name in different if name.startswith("weight")]
    assert "the weights of rank 1 (127.0.0.1) differed from the chief's by up to" in warning
    assert warning.endswith("all workers go on with the chief's, and take them after each step from now on")


def test_a_continued_run_ends_alike(found):
    """Stopped after four steps, with the weights of one that was not."""
    assert found["continued"] == []


class Two:
    """Workers of which the other has found something else."""

    def digests(self, digest):
        return [digest, digest[::-1]]


def test_ranks_are_known_by_what_they_compute():
    assert mixed_processors.differing(Two(), keras.optimizers.Lamb(0.1, global_clipnorm=1.0)) == [1]


def test_an_optimizer_is_tried_as_it_is():
    """Another rate, another result."""
    one, other = (mixed_processors._tried(keras.optimizers.AdamW(rate)) for rate in (0.1, 0.2))
    assert all(np.isfinite(array).all() for array in one)
    assert (one[0] != other[0]).any()


def test_an_optimizer_may_need_more():
    """Than its configuration: then functions are tried."""

    class Needy(keras.optimizers.SGD):
        def __init__(self, given):
            super().__init__(given)

    assert mixed_processors._tried(Needy(0.1)) == []
