"""One batch as a training sees it: images that are mixed, columns that are changed and weighed."""

import numpy as np
import pytest

from control.common import configurations
from control.datasets.listing import kept_columns
from control.datasets.listing.registry import open_source
from control.datasets.publishing import one_batch, publish
from control.datasets.sources import python_function
from control.runs.planning.plan_request import OperatorRequest

FILE = """
import numpy as np
def images(split):
    for number in range(12):
        yield np.full((8, 8, 3), 20 * number, np.uint8), ("a", "b", "c")[number % 3]
def rows(split):
    if split == "validation":
        return None
    x = np.empty(12, object)
    x[:] = [np.arange(1, 2 + number % 5) for number in range(12)]
    return {"words": x, "name": np.array([f"n{number}" for number in range(12)])}, np.arange(12) % 3
def augment(x, y, seed):
    return ({**x, "words": x["words"][::-1]}, y) if isinstance(x, dict) else (x + np.uint8(1), y)
"""


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """What is written of a step of the data of a function."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(python_function, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(kept_columns, "KEPT", tmp_path / "columns")
    (tmp_path / "mine.py").write_text(FILE)

    def write(function, number=0, **keys):
        base = {"data": {"image_size": [8, 8, 3], "validation_split": 0.25}, "train": {"batch_size": 4, "global_batch": 4}}
        given = {**OperatorRequest.of({"dataset": f"mine.py:{function}"}).overrides, **keys}
        config = configurations.build(configurations.override(base, given))
        source = open_source(config.data.source, config.data.path)
        made = publish.publish(source, tmp_path / "packs", False, lambda *_: None)
        one_batch.write_batch(config, publish.place_of(tmp_path / "packs", made.sha256), 3, number, tmp_path / "batch.npz")
        with np.load(tmp_path / "batch.npz") as written:
            return dict(written)

    return write


def test_images_are_mixed_only_where_asked(seen):
    actual = seen("images", **{"augment.mixup": 50.0, "train.label_smoothing": 0.1})
    assert actual["names"].tolist() == ["image", "label"]
    assert actual["classes"].tolist() == ["a", "b", "c"]
    assert actual["original-0"].shape == actual["seen-0"].shape == (3, 8, 8, 3)
    assert actual["seen-0"].dtype == np.uint8
    assert not np.array_equal(actual["original-0"] + 1, actual["seen-0"])
    np.testing.assert_allclose(actual["seen-1"].sum(axis=1), 1, atol=1e-6)
    actual = seen("images")
    assert np.array_equal(actual["original-0"] + 1, actual["seen-0"])
    assert np.array_equal(actual["original-1"], actual["seen-1"])


def test_columns_are_changed_weighed_and_of_one_step(seen):
    weighs = {"train.class_weight": {"0": 2.0}, "data.bucket": 2}
    actual = seen("rows", **weighs)
    assert actual["names"].tolist() == ["x.words", "x.name", "y", "sample_weight"]
    for original, changed in zip(actual["original-0"], actual["seen-0"], strict=True):
        assert original[original > 0][::-1].tolist() == changed[changed > 0].tolist()
    assert actual["seen-1"].tolist() == actual["original-1"].tolist()
    assert actual["seen-1"].dtype.kind == "U"
    assert "original-3" not in actual
    assert actual["seen-3"].tolist() == np.where(actual["seen-2"] == 0, 2.0, 1.0).tolist()
    assert seen("rows", 1, **weighs)["seen-1"].tolist() != actual["seen-1"].tolist()
