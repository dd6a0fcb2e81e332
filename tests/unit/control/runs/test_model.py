"""What the plan says of a compiled model."""

from control.runs import model
from control.runs.plan import own
from tests.project import ROOT
from trainer.data.spec import Leaf, Spec


def examined(name, *shapes):
    spec = Spec(list(range(len(shapes))), tuple(Leaf(f"leaf{number}", "float32", shape) for number, shape in enumerate(shapes)))
    return model.examine(own.section(f"{ROOT}/examples/{name}.py:build"), [32, 32, 3], 0, spec.to_json())["compiled"]


def test_columns_keep_their_names_when_metrics_are_tried(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import keras\ndef build():\n"
        "    inputs = {'z': keras.Input((1,), name='z'), 'a': keras.Input((), dtype='string', name='a')}\n"
        "    x = keras.layers.StringLookup(vocabulary=['b'], output_mode='one_hot')(inputs['a'])\n"
        "    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()([inputs['z'], x])))\n"
        "    model.compile('sgd', 'mse', metrics=['mae'])\n    return model\n"
    )
    leaves = (Leaf("x.z", "float32", (1,)), Leaf("x.a", "string", ()), Leaf("y", "float32", (1,)))
    section = own.section(f"{tmp_path}/mine.py:build")
    examined = model.examine(section, [32, 32, 3], 0, Spec([{"z": 0, "a": 1}, 2], leaves).to_json())
    assert examined["compiled"]["metrics"] == ["loss", "mae"]


def test_a_train_step_of_its_own_trains_with_the_optimizers_that_it_calls():
    compiled = examined("gan", (2,))
    assert (compiled["optimizer"], compiled["own"], compiled["validates"]) == ("Adam, Adam", ["train_step"], False)


def test_a_loss_of_its_own_is_validated():
    compiled = examined("vae", (16, 16))
    assert (compiled["optimizer"], compiled["own"], compiled["validates"]) == ("Adam", ["compute_loss"], True)
