"""The models: names, options and parameter counts. Keras is imported once, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer import models
from trainer.errors import ConfigError
from trainer.models.cnn import DeepOptions

ROOT = Path(__file__).resolve().parents[2]
CASES = {
    "lecture": ({"name": "lecture_cnn"}, (28, 28, 1), 10),
    "lecture in colour": ({"name": "lecture_cnn"}, (32, 32, 3), 10),
    "task": ({"name": "task_cnn"}, (32, 32, 3), 10),
    "deep": ({"name": "deep_cnn"}, (32, 32, 3), 10),
    "deep with options": ({"name": "deep_cnn", "filters": 4, "stages": 1}, (8, 8, 1), 2),
    "deepest": ({"name": "deep_cnn", "filters": 1, "stages": 5}, (32, 40, 1), 2),
    "too deep": ({"name": "deep_cnn", "stages": 6}, (32, 40, 1), 2),
    "no stages": ({"name": "deep_cnn", "stages": 0}, (32, 32, 1), 2),
    "no filters": ({"name": "deep_cnn", "filters": 0}, (32, 32, 1), 2),
}
SCRIPT = """
import json, sys
from trainer import models, worker
from trainer.errors import ConfigError
worker.quiet_tensorflow()
found = {}
for case, (section, size, classes) in json.loads(sys.argv[1]).items():
    try:
        model = models.build(section, tuple(size), classes)
        found[case] = {"parameters": model.count_params(), "output": list(model.output_shape), "name": model.name,
                       "layers": [type(layer).__name__ for layer in model.layers]}
    except ConfigError as error:
        found[case] = {"refused": str(error)}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def built():
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(CASES)], capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("case", "parameters"),
    [
        ("lecture", 2_770_634),
        ("task", 3_688_714),
        ("deep with options", (1 * 9 * 4 + 4) + (4 * 9 * 4 + 4) + (4 * 4 * 4 * 128 + 128) + (128 * 2 + 2)),
    ],
)
def test_parameter_counts(case, parameters, built):
    assert built[case]["parameters"] == parameters


@pytest.mark.parametrize(("case", "classes"), [("lecture", 10), ("lecture in colour", 10), ("task", 10), ("deep", 10), ("deepest", 2)])
def test_output_is_one_logit_for_each_class(case, classes, built):
    assert built[case]["output"] == [None, classes]
    assert built[case]["layers"][-1] == "Dense"


def test_deep_cnn_is_three_stages_of_two_convolutions_and_a_pooling(built):
    stages = [name for name in built["deep"]["layers"] if name in ("Conv2D", "MaxPooling2D")]
    assert stages == ["Conv2D", "Conv2D", "MaxPooling2D"] * 3


@pytest.mark.parametrize("case", ["too deep", "no stages"])
def test_stages_that_do_not_fit_are_refused_with_the_rule(case, built):
    stages = CASES[case][0]["stages"]
    assert built[case]["refused"].startswith(f"model.stages: {stages} is not allowed; each stage halves the image, and 32x")
    assert "can be halved 5 times" in built[case]["refused"]


def test_filters_that_are_not_allowed_are_named(built):
    assert built["no filters"]["refused"].startswith("model.filters: 0 is not allowed")


def test_models_are_registered():
    assert models.names() == ["deep_cnn", "lecture_cnn", "task_cnn"]


def test_options_have_defaults_and_can_be_set():
    assert models.options_of({"name": "deep_cnn"}) == DeepOptions(filters=32, stages=3)
    assert models.options_of({"name": "deep_cnn", "stages": 2}) == DeepOptions(filters=32, stages=2)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"name": "task_cn"},
            "model.name: task_cn is unknown (did you mean task_cnn?); it must be one of: deep_cnn, lecture_cnn, task_cnn",
        ),
        (
            {"name": "deep_cnn", "stage": 2},
            "model.stage: deep_cnn has no such option (did you mean stages?); known: model.filters, model.stages",
        ),
        ({"name": "task_cnn", "filters": 2}, "model.filters: task_cnn has no such option; known: none"),
        ({"name": "deep_cnn", "stages": "3"}, "model.stages: '3' is not of type int"),
        ({"name": "deep_cnn", "stages": True}, "model.stages: True is not of type int"),
        ({"name": "deep_cnn", "stages": 2.0}, "model.stages: 2.0 is not of type int"),
    ],
)
def test_wrong_options_are_refused(section, message):
    with pytest.raises(ConfigError) as caught:
        models.options_of(section)
    assert str(caught.value) == message


def test_options_are_checked_without_keras():
    script = "import sys; from trainer import models; models.options_of({'name': 'deep_cnn', 'stages': 2}); print('keras' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path(__file__).resolve().parents[2]
    )
    assert done.stdout.strip() == "False"
