"""What the plan says of a compiled model."""

import pytest

from control.common import user_files
from control.runs.planning import examine_model
from tests.project import ROOT
from trainer.data.spec import Leaf, Spec


def examined(name, *shapes):
    spec = Spec(list(range(len(shapes))), tuple(Leaf(f"leaf{number}", "float32", shape) for number, shape in enumerate(shapes)))
    return examine_model.examine(user_files.model_section(f"{ROOT}/examples/{name}.py:build"), [32, 32, 3], 0, spec.to_json())["compiled"]


def test_columns_keep_their_names_when_metrics_are_tried(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import keras\ndef build():\n"
        "    inputs = {'z': keras.Input((1,), name='z'), 'a': keras.Input((), dtype='string', name='a')}\n"
        "    x = keras.layers.StringLookup(vocabulary=['b'], output_mode='one_hot')(inputs['a'])\n"
        "    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()([inputs['z'], x])))\n"
        "    model.compile('sgd', 'mse', metrics=['mae'])\n    return model\n"
    )
    leaves = (Leaf("x.z", "float32", (1,)), Leaf("x.a", "string", ()), Leaf("y", "float32", (1,)))
    section = user_files.model_section(f"{tmp_path}/mine.py:build")
    examined = examine_model.examine(section, [32, 32, 3], 0, Spec([{"z": 0, "a": 1}, 2], leaves).to_json())
    assert examined["compiled"]["metrics"] == ["loss", "mae"]


def test_own_train_step_trains_with_its_optimizers():
    compiled = examined("gan", (2,))
    assert (compiled["optimizer"], compiled["own"], compiled["validates"]) == ("Adam, Adam", ["train_step"], False)


def test_a_loss_that_a_layer_adds_is_validated(tmp_path):
    """As that of a VAE, where `compile` is given none."""
    (tmp_path / "mine.py").write_text(
        "import keras\n@keras.saving.register_keras_serializable()\nclass Add(keras.layers.Layer):\n    def call(self, x):\n"
        "        self.add_loss(keras.ops.mean(x**2))\n        return x\n"
        "def build():\n    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), Add()])\n"
        "    model.compile('sgd')\n    return model\n"
    )
    section, spec = user_files.model_section(f"{tmp_path}/mine.py:build"), Spec([0], (Leaf("x", "float32", (3,)),))
    assert examine_model.examine(section, [32, 32, 3], 0, spec.to_json())["compiled"]["validates"]


def test_a_fit_of_its_own_is_warned_of(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import keras\n@keras.saving.register_keras_serializable()\nclass Mine(keras.Model):\n    def fit(self, *given, **named):\n"
        "        return super().fit(*given, **named)\n"
        "def build():\n    inputs = keras.Input((3,))\n    model = Mine(inputs, keras.layers.Dense(1)(inputs))\n"
        "    model.compile('sgd', 'mse')\n    return model\n"
    )
    section = user_files.model_section(f"{tmp_path}/mine.py:build")
    spec = Spec([0, 1], (Leaf("x", "float32", (3,)), Leaf("y", "float32", (1,))))
    (warning,) = examine_model.examine(section, [32, 32, 3], 0, spec.to_json())["warnings"]
    assert "its own fit is not called" in warning


def test_a_loss_of_its_own_is_validated():
    compiled = examined("vae", (16, 16))
    assert (compiled["optimizer"], compiled["own"], compiled["validates"]) == ("Adam", ["compute_loss"], True)


@pytest.mark.parametrize(
    ("loss", "outputs", "y", "takes", "warned"),
    [
        ("'sparse_categorical_crossentropy'", 3, (), 3, None),
        ("keras.losses.SparseCategoricalCrossentropy(from_logits=True)", 3, (1,), 3, None),
        ("keras.losses.SparseCategoricalCrossentropy(ignore_class=-1)", 3, (), None, None),
        ("'mse'", 1, (), None, None),
        ("'mse'", 3, (3,), None, None),
        ("'mse'", 3, (), None, "its output is [3] for each example and y is [1]; the loss mse compares"),
        ("keras.losses.Huber()", 1, (3,), None, "its output is [1] for each example and y is [3]"),
        ("stretched", 3, (), None, None),
    ],
)
def test_target_that_keras_would_stretch_is_warned_of(loss, outputs, y, takes, warned, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import keras\n@keras.saving.register_keras_serializable()\ndef stretched(y, p):\n    return (y - p) ** 2\n"
        f"def build():\n    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense({outputs})])\n"
        f"    model.compile('sgd', {loss})\n    return model\n"
    )
    spec = Spec([0, 1], (Leaf("x", "float32", (4,)), Leaf("y", "float32", y)))
    examined = examine_model.examine(user_files.model_section(f"{tmp_path}/mine.py:build"), [32, 32, 3], 0, spec.to_json())
    assert examined.get("takes") == takes
    assert [warned in warning for warning in examined.get("warnings", [])] == ([True] if warned else [])
