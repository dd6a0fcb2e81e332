"""What is shown of a batch: a table of columns, and pictures of what looks like images."""

import re

import numpy as np
import pytest

from control.runs.tasks import batch as draw_batch

X = np.float32([[1, 2.5], [3, 4]])


def test_table_has_columns_as_read_and_as_trained():
    """A table has each column as it is and as training sees it where that differs."""
    names = np.array(["ab", "c\x1b[31m"])
    same = np.array([0, 1])
    leaves = [("x.a", X, X * 2), ("x.b", names, names), ("y", same, same), ("sample_weight", None, np.float32([1, 0.5]))]
    shown = draw_batch._table(leaves).splitlines()
    assert re.split("  +", shown[0])[1:] == ["row", "x.a", "x.a in training", "x.b", "y", "sample_weight in training"]
    assert "[1 2.5] (2)" in shown[1]
    assert "[2 5] (2)" in shown[1]
    assert "c\\x1b[31m" in shown[2], "no control characters reach the terminal"
    assert shown[2].endswith("0.5")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (np.arange(24), "[0 1 2 3 4 5 ...] (24)"),
        (np.float32(0.125), "0.125"),
        (np.zeros((2, 0), np.int32), "[] (2x0)"),
        (np.array(["a", "b"]), "[a b] (2)"),
        (np.array("x" * 99), "x" * 28 + "..."),
        (np.array([True]), "[True] (1)"),
    ],
)
def test_a_value_is_short(value, shown):
    assert draw_batch._shown(value) == shown


def test_what_looks_like_images_becomes_scaled_pixels():
    floats = np.linspace(-1, 1, 2 * 8 * 9, dtype=np.float32).reshape(2, 8, 9)
    floats[0, 0, 0] = np.nan
    first, second = draw_batch._as_pictures(floats, floats / 2)
    assert first.shape == second.shape == (2, 8, 9, 1)
    assert (first.dtype, int(first[0, 0, 0, 0]), int(first.max()), int(second.max())) == (np.uint8, 0, 255, 190)
    bytes_ = np.full((1, 8, 8, 3), 7, np.uint8)
    assert draw_batch._as_pictures(bytes_)[0] is bytes_
    for odd in (X, np.zeros((2, 4, 9)), np.zeros((2, 9, 9, 2)), np.full((2, 9, 9), "a"), np.zeros((2, 9, 9, 9, 1))):
        assert draw_batch._as_pictures(odd) is None


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (X, "2 images of step 1; training sees them as they are"),
        (X * 2, "2 images of step 1, original and as training sees them"),
    ],
)
def test_head_promises_originals_only_where_shown(seen, words):
    assert draw_batch._head([("image", X, seen)], "2 images of step 1") == words


def test_labels_are_classes_or_values():
    leaves = [("x", X, X), ("y", np.array([1, 0]), np.eye(2))]
    assert draw_batch._labels_of(leaves, ["cat", "a name that is too long"], 2) == ["a name that is...", "cat"]
    assert draw_batch._labels_of(leaves, [], 2) == ["1", "0"]
    assert draw_batch._labels_of(leaves[:1], [], 2) == ["", ""]
