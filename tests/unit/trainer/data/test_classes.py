"""Weights of classes: as Keras' `class_weight`, and scikit-learn's `balanced`."""

import numpy as np
import pytest

from control.datasets.publishing import class_counts
from trainer.common.errors import ConfigError
from trainer.config.schema import Train
from trainer.data import class_weight
from trainer.data.spec import Leaf, Spec

NAMES = ["cat", "dog", "7"]


def spec(*shapes, dtype="int32", weight=None):
    """Of an `x`, and a `y` that is a single array if there is one shape."""
    leaves = [Leaf("x", "float32", (4,)), *(Leaf(f"y{number}", dtype, shape) for number, shape in enumerate(shapes))]
    structure = [0, *([1] if len(shapes) == 1 else [{str(number): 1 + number for number in range(len(shapes))}] if shapes else [])]
    if weight is not None:
        structure.append(len(leaves))
        leaves.append(Leaf("sample_weight", weight, ()))
    return Spec(structure, tuple(leaves))


def table(given, names=(), counts=None):
    return class_weight.weights(Train(class_weight=given, class_counts=counts), names).tolist()


def test_balanced_is_that_of_scikit_learn():
    # sklearn.utils.class_weight.compute_class_weight("balanced", classes=[0, 1, 2], y=[0] * 6 + [1] * 3 + [2] * 1)
    assert class_weight.balanced([6, 3, 1]).tolist() == np.float32([10 / 18, 10 / 9, 10 / 3]).tolist()
    assert table("balanced", NAMES, (6, 3, 1)) == class_weight.balanced([6, 3, 1]).tolist()
    assert class_weight.balanced([6, 0, 2]).tolist() == np.float32([8 / 12, 1, 2]).tolist(), (
        "a class that does not occur counts for nothing"
    )


def test_balanced_without_counts_is_refused():
    with pytest.raises(ConfigError, match=r"balanced needs train\.class_counts"):
        table("balanced", NAMES)


def test_mapping_names_classes_and_others_weigh_1():
    assert table({"dog": 2.5}, NAMES) == [1, 2.5, 1]
    assert table({"0": 3.0, "7": 4.0}, NAMES) == [3, 1, 4], "a name comes before a number"
    assert table({"2": 0.5}) == [1, 1, 0.5]


@pytest.mark.parametrize(
    ("given", "names", "message"),
    [
        ("dogs", NAMES, r"dogs is no class \(did you mean dog\?\); there are: cat, dog, 7, or 0 to 2"),
        ("3", NAMES, "3 is no class; there are"),
        ("cat", [], "cat is no class; the classes of this dataset have no names"),
        ("100000", [], "100000 is no class"),
        ("-1", [], "-1 is no class"),
    ],
)
def test_a_class_that_there_is_not_is_refused(given, names, message):
    with pytest.raises(ConfigError, match=message):
        table({given: 2.0}, names)


@pytest.mark.parametrize(
    ("y", "numbers"),
    [
        ([2, 0, 1], [2, 0, 1]),
        ([[2], [0]], [2, 0]),
        ([0.0, 1.0], [0, 1]),
        ([True, False], [1, 0]),
        ([[0.1, 0.9], [1.0, 0.0]], [1, 0]),
    ],
)
def test_classes_of_y_are_those_of_keras(y, numbers):
    assert class_weight.numbers(np.array(y)).tolist() == numbers


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (spec(), "y is missing"),
        (spec((), ()), r"y is y0 int32, y1 int32; class weights need a single y"),
        (spec((3, 4)), r"y is y0 int32 \[3,4\]; it must be one class per example"),
        (spec((None,)), r"y is y0 int32 \[\?\]"),
        (spec((), dtype="string"), "y is y0 string"),
    ],
)
def test_a_y_that_is_no_class_is_refused(made, message):
    with pytest.raises(ConfigError, match=message):
        class_weight.label_of(made)


@pytest.mark.parametrize(("y", "dtype"), [([0.5, 1.0], "float32"), ([-1, 0], "int32"), ([0, 10**9], "int64"), ([np.inf, 0], "float32")])
def test_counting_what_is_no_class_is_refused(y, dtype):
    with pytest.raises(ConfigError, match="has other values than whole numbers from 0 to 99,999"):
        class_counts._counted(np.array(y, dtype), Leaf("y", dtype, ()))


def test_examples_get_the_weights_of_their_classes():
    weighing = class_weight.Weighing(spec(()), np.float32([2, 0.5]))
    x, y = np.zeros((4, 4)), np.array([1, 0, 5, -2])
    assert weighing([x, y])[2].tolist() == [0.5, 2, 1, 1]
    assert [str(leaf) for leaf in weighing.spec.parts["sample_weight"]] == ["sample_weight float32"]


def test_example_weights_are_multiplied_in_any_type():
    """Weights of examples are multiplied whatever their type and place."""
    made = spec((), weight="int64")
    turned = Spec([1, 2, 0], (made.leaves[2], *made.leaves[:2]))
    values = [np.array([3, 4]), np.zeros((2, 4)), np.array([1, 0])]
    weighed = class_weight.Weighing(turned, np.float32([2, 0.5]))
    assert weighed(values)[0].tolist() == [1.5, 8]
    assert weighed.spec.leaves[0].dtype == "float32"
    assert weighed.spec.structure == [1, 2, 0]


def test_several_sample_weights_are_refused():
    made = spec((), weight="float32")
    with pytest.raises(ConfigError, match="it must be a single array"):
        class_weight.Weighing(Spec([0, 1, {"a": 2}], made.leaves), np.ones(2, np.float32))


def test_the_plan_shows_some():
    assert class_counts.weights_text(Train(class_weight={"dog": 2.5}), NAMES) == "cat 1, dog 2.5, 7 1"
    assert class_counts.weights_text(Train(class_weight="balanced", class_counts=tuple(range(1, 9))), []).endswith(", 2 more")
