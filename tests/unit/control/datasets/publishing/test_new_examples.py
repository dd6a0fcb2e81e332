"""The examples of predict.yml: what is read and how it is divided over hosts; what is refused, and with which words."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from control.datasets.listing import kept_columns
from control.datasets.publishing import new_examples
from control.datasets.publishing.new_examples import Parts
from control.datasets.sources import python_function
from tests.unit.refusals import refusal
from tests.unit.samples import idx_bytes, image_bytes
from trainer.data.columns import Columns
from trainer.data.spec import Leaf, Spec, of_images
from trainer.evaluation.predict import BLOCK, SPLIT

TABLE = Spec(
    [{"age": 0, "name": 1, "paid": 2, "rooms": 3}, 4],
    (
        Leaf("x.age", "float32", ()),
        Leaf("x.name", "string", ()),
        Leaf("x.paid", "bool", ()),
        Leaf("x.rooms", "int64", ()),
        Leaf("y", "float32", ()),
    ),
)
ARRAY = Spec([0, 1], (Leaf("x", "float32", (3,)), Leaf("y", "int64", ())))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(python_function, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(kept_columns, "KEPT", tmp_path / "columns")
    return tmp_path


def read(given, spec, images=None, hosts=2):
    """Every host's examples as it opens them, rows by host, warnings."""
    folder = Path("parts")
    shutil.rmtree(folder, ignore_errors=True)
    parts = Parts(folder, spec.inputs, hosts)
    warnings = new_examples.write_examples(given, f"input={given}", spec, images, parts, lambda _: None)
    rows = parts.close()
    opened = [Columns(folder / str(rank), spec.inputs, SPLIT, count) for rank, count in enumerate(rows)]
    return opened, rows, warnings


def refused(given, spec, images=None):
    message = refusal(read, given, spec, images)
    assert len(message) < 700
    return message


def write_table(path, rows=2, **columns):
    given = {"id": "7", "rooms": "3", "age": "4.5", "paid": "true", "name": "Bo"} | columns
    given = {name: value for name, value in given.items() if value is not None}
    path.write_text(",".join(given) + "\n" + (",".join(given.values()) + "\n") * rows)
    return str(path)


# --- columns


def test_table_needs_no_target_and_keeps_its_columns(here):
    (first, second), rows, warnings = read(write_table(here / "new.csv", age="", name="123"), TABLE)
    (x,) = first.gather(np.arange(2))
    assert (rows, len(second), list(x)) == ([2, 0], 0, ["age", "name", "paid", "rooms"])
    assert (x["name"].tolist(), x["paid"].tolist(), x["rooms"].tolist()) == ([b"123"] * 2, [True] * 2, [3, 3])
    assert np.isnan(x["age"]).all()
    assert warnings == [f"input={here}/new.csv has values that are missing (NaN) or infinite: x.age 2"]


def test_files_of_a_folder_are_read_by_name(here):
    (here / "new").mkdir()
    for name, rooms in (("b.csv", "2"), ("a.csv", "1")):
        write_table(here / "new" / name, 1, rooms=rooms)
    (first, _), _, _ = read("new", TABLE)
    assert first.gather(np.arange(2))[0]["rooms"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"age": "old"}, "age of row 1 is 'old', and float32 in training. Fix or remove that row"),
        ({"rooms": ""}, "rooms of row 1 is empty, and int64 in training"),
        ({"rooms": "3.5"}, "rooms of row 1 is '3.5', and int64 in training"),
        ({"rooms": "9" * 30}, f"rooms of row 1 is '{'9' * 30}', and int64 in training"),
        ({"paid": "yes"}, "paid of row 1 is 'yes', and bool in training"),
        ({"age": None, "Age": "3"}, "no column age, which the model takes (did you mean Age?); it has: id, rooms, paid, name, Age"),
        ({"rows": 0}, "has no rows"),
    ],
)
def test_a_table_that_the_model_does_not_take(here, changes, message):
    assert message in refused(write_table(here / "new.csv", **changes), TABLE)


def test_parquet_files_are_tables_too(here):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: nothing but Parquet needs it")
    from pyarrow import parquet

    given = {"rooms": [1, 2], "more": [0, 0], "age": [3, None], "name": ["a", "b"], "paid": [True, False]}
    parquet.write_table(pyarrow.table(given), here / "new.parquet")
    (first, _), _, warnings = read("new.parquet", TABLE)
    (x,) = first.gather(np.arange(2))
    assert (x["rooms"].tolist(), x["age"].tolist()[0], x["name"].tolist()) == ([1, 2], 3.0, [b"a", b"b"])
    assert warnings == ["input=new.parquet has values that are missing (NaN) or infinite: x.age 1"]


def test_what_is_no_table_says_what_to_give(here):
    assert "input=missing.csv: no such file or folder, or no table; give CSV or Parquet files" in refused("missing.csv", TABLE)
    write_table(here / "new.csv")
    assert "is a table, and the model was trained on arrays: x float32 [3]. Fix: give FILE.py:FUNCTION" in refused("new.csv", ARRAY)
    (here / "none").mkdir()
    assert "there is no CSV or Parquet file in it" in refused("none", TABLE)


def function(here, body, parameters=""):
    (here / "mine.py").write_text(f"import numpy as np\ndef new({parameters}):\n    {body}\n")
    return f"{here}/mine.py:new"


@pytest.mark.parametrize(
    "body",
    [
        "return np.ones((5, 3), int)",
        "return np.ones((5, 3)), np.zeros(5)",
        "return (np.ones((5, 3)), np.zeros(5), np.ones(5))",
        "for _ in range(5): yield np.ones((1, 3))",
        "for _ in range(5): yield np.ones((1, 3)), None",
    ],
)
def test_function_returns_what_fit_takes_or_x_alone(here, body):
    (first, _), rows, _ = read(function(here, body), ARRAY)
    assert (rows, first.gather(np.arange(5))[0].tolist()) == ([5, 0], [[1.0] * 3] * 5)


def test_function_of_dataset_or_of_more_keys(here):
    """One of a dataset gives its test examples; a dict may have more keys, in another order."""
    (first, _), _, _ = read(function(here, "return np.full((2, 3), ('train', 'test').index(split)), [0, 1]", "split"), ARRAY)
    assert first.gather(np.arange(2))[0].tolist() == [[1.0] * 3] * 2
    body = "return {'rooms': [1, 2], 'more': [0, 0], 'paid': [True, False], 'name': ['a', 'b'], 'age': [1, 2]}"
    (first, _), _, _ = read(function(here, body), TABLE)
    assert first.gather(np.arange(2))[0]["age"].tolist() == [1.0, 2.0]


NARROW = Spec([0], (Leaf("x", "int16", ()),))


@pytest.mark.parametrize(
    ("body", "spec", "message"),
    [
        ("return np.ones((5, 4))", ARRAY, "an example is x float32 [4], and x float32 [3] in training"),
        ("return np.array([['a'] * 3])", ARRAY, "x is string, and float32 in training"),
        ("return {'a': np.ones(5)}", ARRAY, "has another structure than training: x.a; training has x"),
        ("return np.zeros((0, 3))", ARRAY, "has no rows"),
        ("return None", ARRAY, "it returned None"),
        ("return 1 / 0", ARRAY, "line 3: ZeroDivisionError: division by zero"),
        ("yield np.ones((1, 3)); raise RuntimeError('gone')", ARRAY, "line 3: RuntimeError: gone"),
        ("return {'ages': [1], 'name': ['a']}", TABLE, "it has no age, which the model takes (did you mean ages?); it has: ages, name"),
        ("return np.array([1, 70000])", NARROW, "x of the input has whole numbers that int16 does not hold"),
    ],
)
def test_function_that_gives_what_model_does_not_take(here, body, spec, message):
    assert message in refused(function(here, body), spec)


def test_a_missing_function_is_named(here):
    function(here, "return 1")
    assert "input=mine.py:old: no such function at the top of the file" in refused("mine.py:old", ARRAY)


# --- images


def image_names(here):
    return json.loads((here / "parts" / new_examples.NAMES).read_text())


def test_image_folder_is_read_by_name_with_subfolders(here):
    (here / "pics/b c").mkdir(parents=True)
    for number, name in enumerate(("z.png", "b c/1.JPG", "a.gif", os.fsdecode(b"caf\xe9.png"))):
        (here / "pics" / name).write_bytes(image_bytes(number, kind={"JPG": "JPEG"}.get(name[-3:], name[-3:].upper())))
    for name in ("notes.txt", ".hidden.png"):
        (here / "pics" / name).write_text("no image")
    (first, _), rows, _ = read("pics", of_images((5, 6, 3)), (5, 6, 3))
    assert (rows, image_names(here)) == ([4, 0], ["a.gif", "b c/1.JPG", "caf\\xe9.png", "z.png"])
    assert (first.gather(np.arange(4))[0][3] == np.asarray(Image.open(here / "pics/z.png"))).all()


def test_one_image_and_test_images_of_dataset(here, tmp_path):
    (here / "one.png").write_bytes(image_bytes(1))
    _, rows, _ = read("one.png", of_images((5, 6, 3)), (5, 6, 3))
    assert (rows, image_names(here)) == ([1, 0], ["one.png"])
    (here / "digits").mkdir()
    for split, count in (("train", 4), ("t10k", 2)):
        pixels = np.arange(count * 4).reshape(count, 2, 2)
        (here / "digits" / f"{split}-images-idx3-ubyte").write_bytes(idx_bytes(pixels))
        (here / "digits" / f"{split}-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(count) % 2))
    (first, _), rows, _ = read("digits", of_images((2, 2, 1)), (2, 2, 1))
    assert (rows, image_names(here)) == ([2, 0], ["test/0", "test/1"])
    assert first.gather(np.arange(2))[0].ravel().tolist() == list(range(8))


def test_images_that_can_not_be_read(here):
    size = (2, 2, 1)
    (here / "pics").mkdir()
    assert "input=pics: there is no image in that folder" in refused("pics", of_images(size), size)
    (here / "pics/a.png").write_bytes(image_bytes(1)[:50])
    assert refused("pics", of_images(size), size).startswith("input=pics: a.png can't be read: ")
    (here / "letter.txt").write_text("no image")
    assert refused("letter.txt", of_images(size), size).startswith("input=letter.txt: can't be read: not a JPEG, PNG, BMP or GIF")
    assert "input=nowhere: no such file or folder; give a folder of images" in refused("nowhere", of_images(size), size)


# --- parts


@pytest.mark.parametrize("hosts", [1, 2, 3])
@pytest.mark.parametrize("count", [1, BLOCK, BLOCK + 1, 5 * BLOCK + 7])
def test_hosts_together_have_every_row_once_in_order(here, hosts, count):
    spec = Spec([0], (Leaf("x", "int64", ()),))
    parts = Parts(here / "parts", spec, hosts)
    for start in range(0, count, 100):
        parts.append([np.arange(start, min(count, start + 100))])
    rows = parts.close()
    assert sum(rows) == count
    stored = [Columns(here / "parts" / str(rank), spec, SPLIT, size).gather(np.arange(size))[0] for rank, size in enumerate(rows)]
    joined = []
    for first in range(0, count, BLOCK):
        host, start = Parts.place(first, hosts)
        joined += stored[host][start : start + BLOCK].tolist()
    assert joined == list(range(count))
