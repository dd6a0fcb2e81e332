"""What a loss says a model predicts, and what it gets wrong: classes and numbers."""

import numpy as np
import pytest

from trainer.evaluation import measures
from trainer.evaluation.measures import Classes, Numbers


@pytest.mark.parametrize(
    ("kinds", "logits", "output", "target", "expected"),
    [
        ({"SparseCategoricalCrossentropy"}, False, (3,), (), Classes(3)),
        ({"SparseCategoricalCrossentropy"}, True, (3,), (1,), Classes(3)),
        ({"SparseCategoricalCrossentropy"}, True, (7, 3), (7,), None),
        ({"SparseCategoricalCrossentropy"}, True, (5000,), (), None),
        ({"CategoricalCrossentropy"}, False, (3,), (3,), Classes(3)),
        ({"CategoricalCrossentropy"}, False, (3,), (), None),
        ({"BinaryCrossentropy"}, False, (1,), (), Classes(2, 0.5)),
        ({"BinaryCrossentropy"}, True, (1,), (1,), Classes(2, 0.0)),
        ({"BinaryCrossentropy"}, True, (4,), (4,), None),
        ({"MeanSquaredError"}, False, (1,), (), Numbers(1)),
        ({"Huber", "Loss"}, False, (4, 1), (4,), Numbers(4)),
        ({"MeanSquaredError"}, False, (4,), (), None),
        ({"MeanSquaredError"}, False, (None,), (None,), None),
        ({"MyLoss"}, False, (1,), (), None),
    ],
)
def test_loss_and_shapes_say_what_is_predicted(kinds, logits, output, target, expected):
    assert measures._goal(kinds, logits, output, target) == expected


def judged(goal, examples, classes):
    """The only judge."""
    (one,) = measures.judges([goal], examples, classes)
    return one


def test_classes_are_counted_by_target_and_prediction():
    judge = judged(Classes(3), 5, ["a", "b", "c"])
    judge.see(np.array([0, 1, 2]), np.array([[9, 0, 0], [0, 0, 9], [0, 0, 9.0]]))
    judge.see(np.array([[1], [-1]]), np.array([[9, 0, 0], [9, 0, 0.0]]))
    assert judge.result() == {"classes": ["a", "b", "c"], "confusion": [[1, 0, 0], [1, 0, 1], [0, 0, 1]]}


def test_without_target_class_there_is_no_matrix():
    judge = judged(Classes(3), 1, [])
    judge.see(np.array([7]), np.array([[9, 0, 0.0]]))
    assert judge.result() == {"why": "no target is one of the 3 classes"}


@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_probabilities_are_compared_with_what_came_true(threshold):
    judge = judged(Classes(2, threshold), 200, ["no", "yes"])
    chances = np.repeat([0.05, 0.85], 100)
    targets = np.repeat([0, 1, 0, 1], [90, 10, 25, 75])
    judge.see(targets, np.log(chances / (1 - chances))[:, None] if threshold == 0 else chances)
    judge.see(np.array([1]), np.array([np.nan]))
    calibration = judge.result()["calibration"]
    assert calibration["counts"] == [100, 0, 0, 0, 0, 0, 0, 0, 100, 0]
    assert (calibration["predicted"][0], calibration["predicted"][8]) == (0.05, 0.85)
    assert (calibration["observed"][0], calibration["observed"][8]) == (0.1, 0.75)
    # (|0.05 - 0.1| + |0.85 - 0.75|) / 2, and the mean of the squares of probability minus class.
    assert (calibration["error"], calibration["brier"]) == (0.075, pytest.approx((0.0925 + 0.1975) / 2, abs=1e-6))


def test_classes_with_a_number_each_have_no_calibration():
    judge = judged(Classes(2), 2, [])
    judge.see(np.array([0, 1]), np.eye(2))
    assert judge.result() == {"classes": ["0", "1"], "confusion": [[1, 0], [0, 1]]}


def test_errors_are_predictions_minus_targets():
    judge = judged(Numbers(1), 1000, [])
    for start in range(0, 1000, 100):
        targets = np.arange(start, start + 100.0)
        judge.see(targets, (targets + np.where(targets % 2 == 0, 1, -3))[:, None])
    errors = judge.result()["errors"]
    assert (errors["mean"], errors["mean_absolute"], errors["largest"], errors["values"]) == (-1, 2, 3, 1000)
    assert (errors["low"], errors["high"], errors["below"], errors["above"]) == (-3, 1, 0, 0)
    assert (errors["counts"][0], errors["counts"][-1], sum(errors["counts"])) == (500, 500, 1000)


def test_tails_are_counted_without_what_is_not_finite():
    judge = judged(Numbers(1), 1002, [])
    values = np.concatenate([np.linspace(-1, 1, 998), [500.0, -500.0, np.nan, np.inf]])
    judge.see(np.zeros(1002), values)
    errors = judge.result()["errors"]
    assert errors["low"] > -1.1 < 1.1 > errors["high"]
    assert (errors["largest"], errors["not_finite"], errors["values"]) == (500, 2, 1000)
    assert errors["below"] + errors["above"] + sum(errors["counts"]) == 1000


@pytest.mark.parametrize("value", [0.0, 5.0, -1e9])
def test_equal_errors_have_a_range(value):
    judge = judged(Numbers(1), 3, [])
    judge.see(np.zeros(3), np.full(3, value))
    errors = judge.result()["errors"]
    assert errors["low"] < value < errors["high"]
    assert sum(errors["counts"]) == 3


@pytest.mark.parametrize(("value", "expected"), [(np.nan, "no error is a finite number"), (1e300, "an error is larger than 1e+30")])
def test_why_there_is_no_table_of_errors(value, expected):
    judge = judged(Numbers(1), 1, [])
    judge.see(np.zeros(1), np.full(1, value))
    assert judge.result() == {"why": expected}


def test_every_kth_row_of_many_errors_is_kept(monkeypatch):
    monkeypatch.setattr(measures, "MOST_ERRORS", 100)
    judge = judged(Numbers(2), 200, [])
    for start in range(0, 200, 30):
        rows = np.arange(start, min(200, start + 30.0))
        judge.see(np.zeros((len(rows), 2)), np.stack([rows, rows], axis=1))
    assert judge.result()["errors"]["values"] == 2 * 50
    assert judge.result()["errors"]["largest"] == 196
    # Outputs share the memory.
    assert [judge._every for judge in measures.judges([Numbers(2), Numbers(1)], 200, [])] == [8, 4]


def mistakes(pictures, outputs, goal=None, batches=1):
    """What is kept of these pictures, all of class 0."""
    judge = measures.Confusion(goal or Classes(3), ("a", "b", "c"))
    for some, predicted in zip(np.array_split(pictures, batches), np.array_split(np.array(outputs), batches), strict=True):
        judge.see(np.zeros(len(some), np.int32), predicted, some)
    return judge.result().get("mistakes", [])


def test_most_confident_mistakes_are_kept(monkeypatch):
    monkeypatch.setattr(measures, "MOST_MISTAKES", 3)
    logits = [[9, 0, 0], [0, 1, 0], [0, 0, 5], [0, 7, 0], [np.nan, 1, 1], [0, 0, 3]]
    kept = mistakes(np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1), logits, batches=2)
    assert [(one["example"], one["of"], one["taken_for"], one["rows"]) for one in kept] == [
        (3, 0, 1, ["Aw=="]),
        (2, 0, 2, ["Ag=="]),
        (5, 0, 2, ["BQ=="]),
    ]
    assert kept[0]["probability"] == pytest.approx(np.exp(7) / (np.exp(7) + 2), abs=1e-6)


@pytest.mark.parametrize(
    ("goal", "outputs", "probability"),
    [(Classes(3), [[0.1, 0.7, 0.2]], 0.7), (Classes(2, 0.5), [[0.9]], 0.9), (Classes(2, 0.0), [[2.0]], 1 / (1 + np.exp(-2)))],
)
def test_probability_of_a_mistake_is_the_models(goal, outputs, probability):
    (one,) = mistakes(np.zeros((1, 2, 2, 3), np.uint8), outputs, goal)
    assert one["probability"] == pytest.approx(probability, abs=1e-6)


def test_without_pictures_or_mistakes_none_is_kept():
    assert mistakes(np.zeros((1, 2, 2, 1), np.uint8), [[1, 0, 0]]) == []
    judge = measures.Confusion(Classes(3), ("a", "b", "c"))
    judge.see(np.zeros(1, np.int32), np.array([[0, 1, 0]]))
    assert "mistakes" not in judge.result()


def test_thumbnails_are_bytes_of_few_pixels():
    small = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    assert measures._thumbnail(small).tolist() == small.tolist()
    wide = np.zeros((3, 130, 1), np.uint8)
    wide[:, :3] = 90
    assert measures._thumbnail(wide).shape == (1, 44, 1)
    assert measures._thumbnail(wide)[0, :2, 0].tolist() == [90, 0]
    assert measures._thumbnail(np.array([[[-1.0], [np.nan]], [[0.5], [1.0]]])).tolist() == [[[0], [128]], [[191], [255]]]
    assert measures._thumbnail(np.full((2, 2, 1), 7.0)).max() == 0
