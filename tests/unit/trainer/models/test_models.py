"""The models: names, options and parameter counts. Keras is imported once, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from control.common import model_options
from tests.unit import forked
from trainer.common.errors import ConfigError

ROOT = Path(__file__).resolve().parents[4]
ALL = "cnn, deep_cnn, fashion_cnn, lecture_cnn, resnet50, resnet_cifar, resnet_small, task_cnn"
CASES = {
    "lecture": ({"name": "lecture_cnn"}, (28, 28, 1), 10),
    "lecture in colour": ({"name": "lecture_cnn"}, (32, 32, 3), 10),
    "task": ({"name": "task_cnn"}, (32, 32, 3), 10),
    "deep": ({"name": "deep_cnn"}, (32, 32, 3), 10),
    "deep with options": ({"name": "deep_cnn", "filters": 4, "stages": 1}, (8, 8, 1), 2),
    "deepest": ({"name": "deep_cnn", "filters": 1, "stages": 5}, (32, 40, 1), 2),
    "too deep": ({"name": "deep_cnn", "stages": 6}, (32, 40, 1), 2),
    "no stages": ({"name": "deep_cnn", "stages": 0}, (32, 32, 1), 2),
    "resnet_cifar": ({"name": "resnet_cifar"}, (32, 32, 3), 10),
    "resnet_cifar upstream": ({"name": "resnet_cifar", "layers": 44}, (32, 32, 3), 11),
    "resnet_cifar 20": ({"name": "resnet_cifar", "layers": 20, "weight_decay": 0.0}, (32, 32, 3), 10),
    "resnet_cifar 9": ({"name": "resnet_cifar", "layers": 9}, (32, 32, 3), 10),
    "resnet_cifar at 30x30": ({"name": "resnet_cifar"}, (30, 30, 3), 10),
    "resnet_cifar growing": ({"name": "resnet_cifar", "weight_decay": -1.0}, (32, 32, 3), 10),
    "resnet_small": ({"name": "resnet_small"}, (32, 32, 3), 10),
    "cnn": ({"name": "cnn"}, (32, 32, 3), 10),
    "cnn too small": ({"name": "cnn"}, (7, 8, 3), 10),
    "cnn of nothing": ({"name": "cnn", "dropout": 1.0}, (32, 32, 3), 10),
    "fashion_cnn": ({"name": "fashion_cnn"}, (28, 28, 1), 10),
    "fashion_cnn too small": ({"name": "fashion_cnn"}, (28, 7, 1), 10),
    "resnet50": ({"name": "resnet50"}, (224, 224, 3), 1000),
    "resnet50 in grey": ({"name": "resnet50"}, (224, 224, 1), 10),
    "no filters": ({"name": "deep_cnn", "filters": 0}, (32, 32, 1), 2),
}
STAGES = "model.stages: {} is not allowed; each stage halves the image, and"
SCRIPT = """
import json, sys
from trainer import models
from trainer.worker import process
from trainer.common.errors import ConfigError
process.quiet_tensorflow()
found = {}
for case, (section, size, classes) in json.loads(sys.argv[1]).items():
    try:
        model = models.build(section, tuple(size), classes)
        trainable = sum(int(variable.value.shape.num_elements()) for variable in model.trainable_variables)
        penalties = sorted({float(variable.regularizer.l2) for variable in model.trainable_variables if variable.regularizer})
        found[case] = {"parameters": model.count_params(), "output": list(model.output_shape), "name": model.name,
                       "layers": [type(layer).__name__ for layer in model.layers], "trainable": trainable, "penalties": penalties,
                       "norms": sorted({(layer.momentum, layer.epsilon) for layer in model.layers if hasattr(layer, "momentum")})}
    except ConfigError as error:
        found[case] = {"refused": str(error)}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def built():
    return forked.answer(SCRIPT, json.dumps(CASES))


SMALLEST = (1 * 9 * 4 + 4) + (4 * 9 * 4 + 4) + (4 * 4 * 4 * 128 + 128) + (128 * 2 + 2)


@pytest.mark.parametrize(
    ("case", "trainable", "fixed"),
    [
        ("lecture", 2_770_634, 0),
        ("task", 3_688_714, 0),
        ("deep with options", SMALLEST, 0),
        ("resnet_cifar", 658_586, 3168),
        ("resnet_cifar upstream", 658_651, 3168),
        ("resnet_cifar 20", 269_722, 1376),
        ("resnet_small", 7_690_826, 13_568),
        ("cnn", 156_074, 0),
        ("fashion_cnn", 1_475_338, 192),
        ("resnet50", 25_583_592, 53_120),
    ],
)
def test_parameters_that_train_and_all(case, trainable, fixed, built):
    assert (built[case]["trainable"], built[case]["parameters"]) == (trainable, trainable + fixed)


@pytest.mark.parametrize(
    ("case", "counts", "penalties"),
    [
        ("resnet_cifar", {"Conv2D": 43, "Dense": 1, "AveragePooling2D": 2, "Add": 21}, [1e-4]),
        ("resnet_cifar 20", {"Conv2D": 19, "Dense": 1}, []),
        ("resnet_small", {"Conv2D": 25 + 4, "Dense": 1}, [5e-5]),
        ("cnn", {"Conv2D": 3, "Dense": 2}, []),
        ("fashion_cnn", {"Conv2D": 2, "Dense": 3, "Activation": 0}, []),
    ],
)
def test_layers_are_those_of_the_course(case, counts, penalties, built):
    """resnet_small's 26 layers are counted without the convolutions of its four shortcuts."""
    assert {name: built[case]["layers"].count(name) for name in counts} == counts
    assert built[case]["penalties"] == pytest.approx(penalties)


def test_order_of_layers_is_that_of_the_course(built):
    assert built["resnet_cifar"]["norms"] == [[0.997, 1e-5]]
    assert built["fashion_cnn"]["layers"][-5:] == ["Flatten", "Dense", "Dropout", "Dense", "Dense"]
    stages = [name for name in built["deep"]["layers"] if name in ("Conv2D", "MaxPooling2D")]
    assert stages == ["Conv2D", "Conv2D", "MaxPooling2D"] * 3


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("resnet_cifar 9", "model.layers: 9 is not allowed; it must be 6n+2, from 8: 8, 14, 20, ... 44 (the nearest: 8)"),
        ("resnet_cifar at 30x30", "data.image_size: 30x30 is not allowed; resnet_cifar halves the image twice"),
        ("resnet_cifar growing", "model.weight_decay: -1.0 is not allowed; it must be at least 0"),
        ("cnn too small", "data.image_size: 7x8 is not allowed; cnn needs sides of at least 8"),
        ("cnn of nothing", "model.dropout: 1.0 is not allowed; it must be from 0 to below 1"),
        ("fashion_cnn too small", "data.image_size: 28x7 is not allowed; fashion_cnn needs sides of at least 8"),
        ("resnet50 in grey", "data.image_size: [224, 224, 1] is not allowed; resnet50 takes colour images from 32x32"),
        ("no filters", "model.filters: 0 is not allowed; it must be at least 1"),
        ("too deep", f"{STAGES.format(6)} 32x40 can be halved 5 times"),
        ("no stages", f"{STAGES.format(0)} 32x32 can be halved 5 times"),
    ],
)
def test_what_a_model_cant_be_is_refused(case, message, built):
    assert built[case]["refused"].startswith(message)


@pytest.mark.parametrize(("case", "classes"), [("lecture", 10), ("lecture in colour", 10), ("task", 10), ("deep", 10), ("deepest", 2)])
def test_output_is_one_logit_for_each_class(case, classes, built):
    assert built[case]["output"] == [None, classes]
    assert built[case]["layers"][-1] == "Dense"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"name": "task_cn"},
            f"model.name: task_cn is unknown (did you mean task_cnn?); it must be one of: {ALL}; "
            "or give your own: -e model=FILE.py:FUNCTION",
        ),
        (
            {"name": "deep_cnn", "stage": 2},
            "model.stage: deep_cnn has no such option (did you mean stages?); known: model.filters, model.stages",
        ),
        ({"name": "task_cnn", "filters": 2}, "model.filters: task_cnn has no such option; known: none"),
        ({"name": "deep_cnn", "stages": "3"}, "model.stages: '3' is not an integer"),
        ({"name": "deep_cnn", "stages": True}, "model.stages: True is not an integer"),
        ({"name": "deep_cnn", "stages": 2.0}, "model.stages: 2.0 is not an integer"),
        ({"name": "resnet_cifar", "weight_decay": float("nan")}, "model.weight_decay: nan is not a number"),
        ({"name": "resnet_cifar", "weight_decay": "inf"}, "model.weight_decay: inf is not a number"),
        ({"name": "resnet_cifar", "weight_decay": "much"}, "model.weight_decay: 'much' is not a number"),
    ],
)
def test_wrong_options_are_refused(section, message):
    with pytest.raises(ConfigError) as caught:
        model_options.options_of(section)
    assert str(caught.value) == message


def test_every_option_is_written_out():
    assert model_options.section_of({"name": "deep_cnn"}) == {"name": "deep_cnn", "filters": 32, "stages": 3}
    assert model_options.section_of({"name": "deep_cnn", "stages": 2}) == {"name": "deep_cnn", "filters": 32, "stages": 2}
    assert model_options.section_of({"name": "resnet_cifar", "weight_decay": "1e-4"})["weight_decay"] == 1e-4
    assert model_options.options_of({"name": "resnet_cifar", "weight_decay": 0})["weight_decay"] == 0.0
    assert model_options.section_of({"name": "task_cnn"}) == {"name": "task_cnn"}


def test_options_are_checked_without_keras():
    section = {"name": "deep_cnn", "stages": 2}
    script = f"import sys; from control.common import model_options; model_options.options_of({section}); print('keras' in sys.modules)"
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert completed.stdout.strip() == "False"
