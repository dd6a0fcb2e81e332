"""What the plan says of a compiled model."""

from control.runs import model
from control.runs.plan import own
from tests.project import ROOT
from trainer.data.spec import Leaf, Spec


def examined(name, *shapes):
    spec = Spec(list(range(len(shapes))), tuple(Leaf(f"leaf{number}", "float32", shape) for number, shape in enumerate(shapes)))
    return model.examine(own.section(f"{ROOT}/examples/{name}.py:build"), [32, 32, 3], 0, spec.to_json())["compiled"]


def test_a_train_step_of_its_own_trains_with_the_optimizers_that_it_calls():
    compiled = examined("gan", (2,))
    assert (compiled["optimizer"], compiled["own"], compiled["validates"]) == ("Adam, Adam", ["train_step"], False)


def test_a_loss_of_its_own_is_validated():
    compiled = examined("vae", (16, 16))
    assert (compiled["optimizer"], compiled["own"], compiled["validates"]) == ("Adam", ["compute_loss"], True)
