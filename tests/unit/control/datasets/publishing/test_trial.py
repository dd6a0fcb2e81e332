"""What the plan learns from a user's data before hosts are touched: whether its `augment` works, and how often each class comes."""

import numpy as np
import pytest

from control.common import configurations
from control.datasets.listing import kept_columns
from control.datasets.listing.registry import open_source
from control.datasets.publishing import class_counts, publish, try_augment
from control.datasets.sources import python_function
from control.runs.planning import checks
from control.runs.planning.plan_request import OperatorRequest
from trainer.common.errors import ConfigError
from trainer.config import schedule
from trainer.data.columns import open_columns

DATA = """
import numpy as np
def data(split):
    {hold}count = dict(train=30, validation=8, test=10)[split]
    x = np.arange(count * 2, dtype="float32").reshape(count, 2)
    return x, {y}
"""
IMAGES = """
import numpy as np
def data(split):
    for number in range(6):
        yield np.full((4, 4, 3), number, np.uint8), number % 2
"""
HOLD = "if split == 'validation': return None\n    "


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """The data of a file, its source and its listing, as a plan opens them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(python_function, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(kept_columns, "KEPT", tmp_path / "columns")

    def opening(text):
        (tmp_path / "mine.py").write_text(text)
        given = OperatorRequest.of({"dataset": "mine.py:data"}).overrides
        data = configurations.build(configurations.override({"data": {"image_size": [4, 4, 3]}}, given)).data
        source = open_source(data.source, data.path)
        return data, source, source.scan()

    return opening


def augmented(body, y="np.arange(count) % 3"):
    return f"{DATA.format(hold=HOLD, y=y)}\ncalls = []\ndef augment(x, y, seed):\n    {body}\n"


def test_function_is_part_of_configuration_or_warned_of(opened, capsys):
    data, source, listing = opened(augmented("print('here')\n    return x + np.random.default_rng(seed).normal(size=2), y"))
    assert (data.augment["file"], data.augment["function"]) == ("mine.py", "augment")
    try_augment.check_augment(data, source, listing)
    assert capsys.readouterr().out == "", "what it prints must not get into the plan"
    data, source, listing = opened(DATA.format(hold=HOLD, y="x[:, 0]") + "def augment(x):\n    return x\n")
    assert data.augment is None
    try_augment.check_augment(data, source, listing)
    assert checks._augment_warnings(data)[0].startswith("mine.py has a function augment(x), which changes no examples")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return x[:1], y", r"dataset=mine.py:augment: for example 0 it returns x float32 \[1\]; it must stay float32 \[2\]"),
        ("return x + z, y", "dataset=mine.py:augment, line 11: for example 0: NameError: name 'z' is not defined"),
        ("calls.append(1)\n    return x + len(calls), y", "given the same seed twice, it returns two different x"),
        ("return x + np.random.normal(), y", r"Fix: draw from the seed only, as in np.random.default_rng\(seed\)"),
    ],
)
def test_a_function_that_does_not_is_refused(body, message, opened):
    with pytest.raises(ConfigError, match=message) as caught:
        try_augment.check_augment(*opened(augmented(body)))
    assert len(str(caught.value).splitlines()) == 1


def test_images_are_tried_at_their_size_in_training(opened):
    data, source, listing = opened(IMAGES + "def augment(x, y, seed):\n    return x[::-1], y\n")
    try_augment.check_augment(data, source, listing)
    with pytest.raises(ConfigError, match=r"it returns image float64 \[4, 4, 3\]; it must stay uint8 \[4, 4, 3\]"):
        try_augment.check_augment(*opened(IMAGES + "def augment(x, y, seed):\n    return x / 2, y\n"))


@pytest.mark.parametrize("hold", [HOLD, ""])
@pytest.mark.parametrize(
    "y", ["np.arange(count) % 3", "np.eye(3)[np.arange(count) % 3]", "np.array(['b', 'a', 'c'])[np.arange(count) % 3]"]
)
def test_classes_are_counted_among_the_rows_that_train(y, hold, opened, tmp_path):
    _, source, listing = opened(DATA.format(hold=hold, y=y))
    config = configurations.build({"data": {"limit_train": 17}})
    sizes = schedule.counts(config, 2, listing.count("train"), listing.held_out)
    counts = class_counts.of_listing(listing, sizes)
    made = publish.publish(source, tmp_path / "packs", False, lambda *_: None)
    packed, splits = open_columns(publish.place_of(tmp_path / "packs", made.sha256), tmp_path / "caches", lambda *_: None)
    _, labels = splits["train"].gather(packed.order[sizes.validation_images :][: sizes.train_images])
    assert sum(counts) == 17
    assert counts == np.bincount(labels.argmax(axis=1) if labels.ndim > 1 else labels, minlength=3).tolist()


def test_classes_of_images_are_counted_as_published(opened, tmp_path):
    _, source, listing = opened(IMAGES)
    sizes = schedule.counts(configurations.build({"data": {"validation_split": 0.4}}), 2, 6)
    made = publish.publish(source, tmp_path / "packs", False, lambda *_: None)
    assert class_counts.of_listing(listing, sizes) == class_counts.of_images(made, sizes)
    assert sum(class_counts.of_images(made, sizes)) == 4
