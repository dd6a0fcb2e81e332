"""A function of the user's own that changes each example: the same draws wherever it runs, and what it may not change."""

import numpy as np
import pytest

from control.datasets.sources.python_function import augmentation
from tests.unit.trainer.data.test_columns import opened
from trainer.common.errors import ConfigError
from trainer.config import loading
from trainer.data.feeder import Feeder, calls
from trainer.data.partition import EpochPlan
from trainer.data.spec import Leaf, Spec
from trainer.data.transform import Feeding
from trainer.data.user_augment import UserAugment
from trainer.user_code.user_function import Function

FIXED = Spec([{"a": 0}, 1], (Leaf("x.a", "float32", (3,)), Leaf("y", "int32", ())))
VARIED = Spec([0, 1], (Leaf("x", "int32", (None,)), Leaf("y", "int32", ())))
NOISE = """
import numpy as np
def augment(x, y, seed):
    return {"a": x["a"] + np.random.default_rng(seed).normal(size=3)}, y
"""


def given(source):
    return {"file": "mine.py", "function": "augment", "source": source}


class Fixed:
    """Row i is three times i, of class i % 2."""

    spec = FIXED

    def __init__(self, count):
        self._count = count

    def __len__(self):
        return self._count

    def gather(self, indices):
        return {"a": np.repeat(indices[:, None], 3, axis=1).astype(np.float32)}, (indices % 2).astype(np.int32)


def fed(source, workers, first=0, steps=4, most=3, count=11):
    """The `x` that all workers of a cluster see, by row, from a step on, and how often the source was asked."""
    config, chosen, seen = loading.build({"data": {"augment": given(source), "loaders": 2}}), np.arange(count)[::-1], {}
    plan = EpochPlan(count, 3, steps, 5, 2)
    for rank in range(workers):
        feeder = Feeder(Fixed(count), chosen, [1] * workers, rank, Feeding(config, [], FIXED))
        for call, batch in feeder.epoch(plan, calls(first, steps, most, uneven=True)):
            for number in range(call.steps):
                places = batch.places[number][batch.weights[number] > 0]
                for place, row in zip(places, batch.data[0]["a"][number], strict=False):
                    seen[call.first + number, int(place)] = row.tobytes()
    return seen


def test_any_workers_or_resumption_draw_the_same():
    """Any number of workers and a resumed run; a row that comes twice in an epoch is drawn anew."""
    whole = fed(NOISE, 1, steps=8)
    assert len(set(whole.values())) == len(whole) == 24
    assert fed(NOISE, 2, steps=8) == fed(NOISE, 3, steps=8, most=1) == whole
    assert fed(NOISE, 2, first=2, steps=8) == {place: row for place, row in whole.items() if place[0] >= 2}


def rows(source, made=FIXED, count=4):
    examples = Fixed(9)
    return UserAugment(given(source), made, 2).gather(examples, np.arange(count), np.zeros((count, 2), np.int64), [])


def test_numbers_keep_their_type():
    x, y = rows("def augment(x, y, seed):\n    return {'a': x['a'].astype('float64') * 2}, bool(y)\n")
    assert x["a"].dtype == np.float32
    assert x["a"][3].tolist() == [6, 6, 6]
    assert (y.dtype, y.tolist()) == (np.int32, [0, 1, 0, 1])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 1 / 0", r"mine.py:augment, line 2: for example 0: ZeroDivisionError: division by zero"),
        ("return x", r"for example 0 it returns \{'a': array.*it must return \(x, y\)"),
        ("return None", r"it returns None; it must return \(x, y\)"),
        ("return x['a'], y", r"for example 0: .* has another structure than \{'a': 0\}; it must return \(x, y\) as it was given"),
        ("return {'b': x['a']}, y", "has another structure"),
        ("return {'a': x['a'][:2]}, y", r"it returns x.a float32 \[2\]; it must stay float32 \[3\]"),
        ("return {'a': 'text'}, y", r"it returns x.a <U4 \[\]; it must stay float32"),
        ("return {'a': [[1], [1, 2], 3]}, y", "it must stay float32"),
        ("return x, 2**40 + int(y)", r"it returns y numbers that int32 does not hold; clip them first"),
        ("return x, y + 0.5", r"it returns y float64 \[\]; it must stay int32 \[\]"),
    ],
)
def test_forbidden_act_is_said_with_the_example(body, message):
    with pytest.raises(ConfigError, match=message):
        rows(f"def augment(x, y, seed):\n    {body}\n")


def test_varying_examples_come_unpadded(tmp_path):
    """Examples that vary come without padding and may become shorter."""
    spec = Spec([{"words": 0, "tags": 1}], (Leaf("x.words", "int32", (None,)), Leaf("x.tags", "string", (None,))))

    def values(count, first=0):
        numbers = range(first, first + count)
        return [[np.arange(1, 1 + number % 4) for number in numbers], [[f"t{k}" for k in range(number % 3)] for number in numbers]]

    examples = opened(tmp_path, spec=spec, values=values)
    source = "def augment(x, seed):\n    assert 0 not in x['words']\n    return {'words': x['words'][::-1][:2], 'tags': x['tags']}\n"
    indices = np.array([3, 1, 2])
    (x,) = UserAugment(given(source), spec, 2).gather(examples, indices, np.zeros((3, 2), np.int64), [4, 3])
    assert x["words"].tolist() == [[3, 2, 0, 0], [1, 0, 0, 0], [2, 1, 0, 0]]
    assert x["tags"].tolist() == [[b""] * 3, [b"t0", b"", b""], [b"t0", b"t1", b""]]
    longer = "def augment(x, seed):\n    return {'words': [1] * 9, 'tags': x['tags']}\n"
    with pytest.raises(ConfigError, match=r"x.words int64 \[9\]; it must stay int32 \[3\], or shorter where it varies"):
        UserAugment(given(longer), spec, 2).gather(examples, indices, np.zeros((3, 2), np.int64), [4, 3])


@pytest.mark.parametrize(
    ("source", "finds", "warns"),
    [
        ("def data(kind): pass\n", False, None),
        ("def augment(x, y, seed): pass\n", True, None),
        ("def augment(image): pass\n", False, "has a function augment(image), which changes no examples: its last parameter must be seed"),
        ("def augment(: pass\n", False, None),
        ("def augment(split): pass\n", False, None),
    ],
)
def test_it_is_found_in_file_of_data(source, finds, warns):
    known, warning = augmentation(Function("mine.py", "augment" if "split" in source else "data", source))
    assert known == (given(source) if finds else None)
    assert (warns is None) == (warning is None)
    assert warns is None or warns in warning
