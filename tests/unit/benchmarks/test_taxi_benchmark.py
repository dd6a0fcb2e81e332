"""What is said of the taxi model beside simpler ones."""

import numpy as np

from benchmarks.scripts import taxi

X = {"payment_type": np.array(["Cash", "Credit Card", "Credit Card", "Unknown"])}


def shown(y: list[float], probability: list[float]) -> list[str]:
    return [str(value) for value in taxi.scores(np.array(y), np.array(probability))]


def test_kinds_of_trips():
    assert taxi.is_paid(X, None).tolist() == [True] * 4
    assert taxi.is_paid(X, "Credit Card").tolist() == [False, True, True, False]


def test_scores_of_a_model():
    """One of two tips is found, and one of two guesses of a tip is wrong."""
    assert shown([1, 1, 0, 0], [0.9, 0.2, 0.6, 0.1]) == ["0.500", "0.750", "0.500", "0.500", "0.500", "0.400"]


def test_what_is_not_defined_is_not_made_up():
    assert shown([0, 0], [0.2, 0.4]) == ["0.000", "-", "1.000", "-", "-", "0.300"]
    assert shown([1, 1], [0.7, 0.7])[1:] == ["-", "1.000", "1.000", "1.000", "0.300"]


def trips(number: int, seed: int) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(seed)
    numbers = {name: drawn.uniform(1, 50, (number, 1)) for name in ("fare", "trip_miles", "trip_seconds")}
    return {**numbers, "payment_type": drawn.choice(["Cash", "Card"], number), "company": drawn.choice(["A", "B", "C"], number)}


def test_regression_is_that_of_scikit_learn():
    # LogisticRegression() of scikit-learn 1.9.1 behind log1p, StandardScaler and OneHotEncoder, on the same trips.
    x = trips(200, 1)
    y = (x["payment_type"] == "Card").astype(float)
    y[::7] = 1 - y[::7]
    assert np.allclose(taxi.regression(x, y, trips(3, 2)), [0.4268, 0.8766, 0.1798], atol=1e-4)
