"""Columns from a user's own function and from tables: what is taken, what is refused, and with which words."""

import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from control.common import configurations
from control.datasets.listing import kept_columns
from control.datasets.listing.registry import detect, open_source
from control.datasets.publishing import publish
from control.datasets.sources import python_function
from control.report import trained
from control.runs.planning import host_needs, model_size, plan, plan_request, resolve
from control.runs.show import plan_text
from tests.unit import forked
from tests.unit.samples import flip_a_bit
from trainer.common.errors import LockstepError
from trainer.data import manifest
from trainer.data.columns import open_columns
from trainer.data.spec import Leaf, Spec
from trainer.rundir.launch_record import Host, LaunchRecord


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(python_function, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(kept_columns, "KEPT", tmp_path / "columns")
    return tmp_path / "mine.py"


def source(file, body, target=None, features=None, before=""):
    """The source of a function `data(split)` with that body, in which `n` is 30 for train and 10 for test."""
    lines = "\n    ".join(["n = {'train': 30, 'validation': 8, 'test': 10}[split]", *body.split("\n")])
    file.write_text(f"import numpy as np\n{before}\ndef data(split):\n    {lines}\n")
    return python_function.PythonFunction("mine.py:data", target, features)


NO_VALIDATION = "if split == 'validation': return None\n"


def leaves_of(source):
    return [str(leaf) for leaf in source.scan().table.spec.leaves]


def published(source, packs="packs"):
    """Publish, and open as a node does: the manifest and the splits."""
    made = publish.publish(source, kept_columns.KEPT.parent / packs, False, lambda *_: None)
    place = publish.place_of(kept_columns.KEPT.parent / packs, made.sha256)
    return open_columns(place, kept_columns.KEPT.parent / "caches", lambda *_: None)


def refused(work, *arguments):
    with pytest.raises(LockstepError) as caught:
        work(*arguments)
    assert len(str(caught.value)) < 1500
    assert not list(kept_columns.KEPT.parent.glob("*/.part-*"))
    return str(caught.value)


def test_arrays_are_published_and_gathered(file):
    made = source(file, NO_VALIDATION + "return np.arange(n * 4.0).reshape(n, 4), np.arange(n)")
    listing = made.scan()
    assert leaves_of(made) == ["x float32 [4]", "y int64"]
    assert (listing.name, listing.classes, listing.count("train"), listing.count("test"), listing.held_out) == ("mine", [], 30, 10, None)
    packed, splits = published(made)
    x, y = splits["train"].gather(np.array([29, 0]))
    assert (x.tolist(), y.tolist()) == ([[116, 117, 118, 119], [0, 1, 2, 3]], [29, 0])
    assert sorted(packed.order.tolist()) == [*range(30)]
    assert publish.PublishedData.of(packed) == publish.PublishedData(packed.digest, packed.sha256, 30, 10, None, [])


def test_equal_examples_have_equal_digests(file):
    """The same examples have the same digest wherever they come from."""
    first, _ = published(source(file, NO_VALIDATION + "return np.ones((n, 2)), np.arange(n)"))
    batches = NO_VALIDATION + "for k in range(0, n, 10): yield np.ones((10, 2), np.float32), np.arange(k, k + 10)"
    second, _ = published(source(file, batches.replace("return None", "return")), "others")
    third, _ = published(source(file, NO_VALIDATION + "return np.ones((n, 2)), np.arange(n)[::-1]"), "others")
    # A generator function can't return None: it has an empty validation split instead.
    assert (first.digest, first.sha256) == (second.digest, second.sha256)
    assert first.digest != third.digest


def test_a_split_for_validation_is_held_out(file):
    made = source(file, "return {'a': np.full(n, n), 'b': {'c': np.ones((n, 2), bool)}}, np.full(n, n), np.ones(n)")
    assert made.scan().note == "8 examples for validation are the dataset's own"
    packed, splits = published(made)
    assert (packed.count("train"), packed.held_out, len(splits["train"])) == (38, 8, 38)
    x, y, weight = splits["train"].gather(packed.order[:8])
    assert (set(y.tolist()), x["b"]["c"].shape, weight.dtype) == ({8}, (8, 2), np.float32)
    assert set(splits["train"].gather(packed.order[8:])[1].tolist()) == {30}


@pytest.mark.parametrize(
    ("body", "leaves", "inputs", "y"),
    [
        (
            "words = np.array([np.arange(k % 5) for k in range(n)], dtype=object)\n"
            "return {'title': [f'ü{k}' for k in range(n)], 'words': words, 'tags': [['a'] * (k % 3) for k in range(n)]}, np.zeros(n)",
            ["x.title string", "x.words int64 [?]", "x.tags string [?]", "y float32"],
            {"title": ["ü4".encode(), "ü1".encode()], "words": [[0, 1, 2, 3], [0, 0, 0, 0]], "tags": [[b"a"], [b"a"]]},
            [0, 0],
        ),
        (
            "return [np.zeros((n, 2)), np.ones((n, 3))], [k % 2 for k in range(n)]",
            ["x[0] float32 [2]", "x[1] float32 [3]", "y int64"],
            {0: [[0, 0]] * 2, 1: [[1, 1, 1]] * 2},
            [0, 1],
        ),
    ],
)
def test_strings_ragged_sequences_and_several_inputs(body, leaves, inputs, y, file):
    made = source(file, NO_VALIDATION + body)
    assert leaves_of(made) == leaves
    x, labels = published(made)[1]["train"].gather(np.array([4, 1]))
    assert {key: x[key].tolist() for key in inputs} == inputs
    assert labels.tolist() == y


def test_a_y_of_strings_is_a_class(file):
    made = source(file, NO_VALIDATION + "return np.arange(n), ['b10', 'a', 'b9'] * (n // 3) + ['a'] * (n % 3)")
    assert made.scan().classes == ["a", "b10", "b9"]
    packed, splits = published(made)
    assert packed.classes == ["a", "b10", "b9"]
    assert splits["train"].gather(np.arange(4))[1].tolist() == [1, 0, 2, 1]
    assert splits["test"].gather(np.arange(10))[1].tolist() == [1, 0, 2] * 3 + [0]


@pytest.mark.parametrize(
    ("classes", "y", "message"),
    [
        ("['no', 'yes']", "np.arange(n) % 3", "y of train has 2; with 2 classes it runs from 0 to 1"),
        ("['no', 'yes']", "np.ones(n)", "it names classes, and y is y float32; it must be one whole number per example"),
        ("3", "np.ones(n)", "its attribute classes is 3; it must be a list of at least two names"),
    ],
)
def test_a_function_names_the_classes_of_numbers(classes, y, message, file):
    def named(classes, y):
        source(file, f"{NO_VALIDATION}return np.arange(n), {y}\n")
        file.write_text(f"{file.read_text()}\ndata.classes = {classes}\n")
        return python_function.PythonFunction("mine.py:data")

    assert named("['no', 'yes']", "np.arange(n) % 2").scan().classes == ["no", "yes"]
    assert message in refused(named(classes, y).scan)


def test_function_runs_once_until_file_or_settings_change(file):
    """A file of settings beside it that it names makes the function run again."""
    source(file, NO_VALIDATION + "open('ran.txt', 'a').write(split[0])\nopen('rules.yml').close()\nreturn np.arange(n), np.arange(n)")
    (file.parent / "rules.yml").write_text("most: 1")
    seen, ran = set(), 0
    for changed in (file.parent / "rules.yml", file):
        changed.write_text(f"{changed.read_text()}# changed\n")
        listing, ran = python_function.PythonFunction("mine.py:data").scan(), ran + 1
        assert python_function.PythonFunction("mine.py:data").scan() == listing
        assert (file.parent / "ran.txt").read_text() == "tt" * ran
        seen.add(listing.fingerprint)
    assert len(seen) == 2


def test_changed_environment_variable_runs_the_function_again(file, monkeypatch):
    """An environment variable that the file names makes the function run again."""
    body = NO_VALIDATION + "name = 'TRIPS'\nreturn np.arange(n), np.full(n, int(open(os.environ.get(name, 'one')).read()))"
    (file.parent / "one").write_text("1")
    (file.parent / "two").write_text("2")
    monkeypatch.delenv("TRIPS", raising=False)

    def y():
        _, splits = published(source(file, body, before="import os\nodd = ['\\ud800', b'TRIPS', 7, 'a\\0b', 'UNSET_ANYWHERE']\n"))
        return splits["test"].gather(np.arange(1))[1].tolist()

    assert y() == [1]
    monkeypatch.setenv("TRIPS", "two")
    assert y() == [2]
    (file.parent / "two").write_text("22")
    assert y() == [22]
    monkeypatch.setenv("UNRELATED", "x")
    (file.parent / "two").unlink()
    (file.parent / "one").unlink()
    monkeypatch.delenv("TRIPS")
    # Nothing is read: the first result is still kept.
    assert y() == [1]
    monkeypatch.setenv("TRIPS", "x" * 400)
    assert "OSError: [Errno 36] File name too long" in refused(source(file, body, before="import os\n").scan)


def test_what_function_warns_of_is_shown_by_plan(file):
    body = (
        NO_VALIDATION + "for k in range(9): warnings.warn(f'{split}: row {k} is left out\\x1b[2J' + 'x' * 999)\n"
        "warnings.warn('old', DeprecationWarning)\nreturn np.arange(n), np.arange(n)"
    )
    made = source(file, body, before="import warnings\n")
    warned = made.scan().warnings
    assert [text.partition("is")[0] for text in warned] == [f"dataset=mine.py:data: train: row {k} " for k in range(5)]
    assert all("\x1b" not in text and len(text) < 350 for text in warned)
    assert python_function.PythonFunction("mine.py:data").scan().warnings == warned
    # A mean of the data, say, which the model's function, too, reads at the top of the file.
    made = source(file, NO_VALIDATION + "global MEAN\nMEAN = 3\nreturn np.arange(n), np.arange(n)", before="MEAN = 0\n")
    assert "it sets MEAN at the top of the file, which models on hosts do not see. Fix: compute it" in made.scan().warnings[0]


def test_batches_are_taken_one_at_a_time(file):
    before = "import weakref\nlive = []\nclass Batch(np.ndarray):\n    pass\n"
    body = (
        "for k in range(n if split != 'validation' else 0):\n    x = np.zeros((5, 2)).view(Batch)\n"
        "    live[:] = [one for one in live if one() is not None] + [weakref.ref(x)]\n    assert len(live) < 4\n    yield x, np.zeros(5)"
    )
    made = source(file, body, before=before)
    assert made.scan().count("train") == 150


@pytest.mark.parametrize(
    ("y", "targets"),
    [
        ("np.arange(n) % 4 - (split == 'test')", {"train": [0, 3], "validation": [0, 3], "test": [-1, 2]}),
        ("np.full((n, 2), 0.5)", {"train": [0.5, 0.5], "validation": [0.5, 0.5], "test": [0.5, 0.5]}),
        ("{'a': np.zeros(n), 'b': np.ones(n)}", {}),
        ("np.array([[1] * (k % 2 + 1) for k in range(n)], dtype=object)", {}),
    ],
)
def test_lowest_and_highest_number_of_y_are_known(y, targets, file):
    body = "y = Y\nfor k in range(0, n, 7):\n    yield np.zeros((len(y[k:k + 7]), 1)), y[k:k + 7]"
    whole = "return np.zeros((n, 1)), Y"
    for given in (body, whole) if y.startswith("np.") else (whole,):
        assert source(file, given.replace("Y", y)).scan().targets == targets


def test_missing_values_of_x_are_counted(file):
    body = "x = np.zeros((n, 3))\nx[3, 1] = np.nan\nx[:, 2] = np.inf\nreturn {'a': x, 'b': np.full(n, 1e300)}, np.zeros(n)"
    (warning,) = source(file, NO_VALIDATION + body).scan().warnings
    assert "that are missing (NaN) or infinite: x.a 42, x.b 40. The loss becomes NaN, too, unless" in warning


def test_whole_numbers_that_are_rounded_are_named(file):
    made = table(file, "tract,near,y\n" + "17031839101,1.5,1\n,2,1\n" * 20, "y")
    missing, rounded = made.scan().warnings
    assert "missing (NaN) or infinite: x.tract 20" in missing
    assert rounded.startswith("dataset=trips.csv has whole numbers above 16,777,216 that float32 rounds: x.tract. Fix, if they are names")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return np.zeros((n, 3)), np.zeros(n - 1)", "the data of train: x has 30 examples and y has 29; each array has one entry per"),
        ("return np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)", "the data of train is (array("),
        ("return 3", "for train it returned 3; return or yield what Keras' fit takes"),
        ("return None", 'it returned None for "train"; return or yield what'),
        ("return np.zeros((0, 2)), np.zeros(0)", "train is empty; it needs at least one example"),
        ("return np.zeros(n if split == 'train' else 0)", "test is empty; it needs at least one example"),
        ("for k in range(3): yield np.zeros(5), np.zeros(5 - k)", "batch 1 of train: x has 5 examples and y has 4"),
        ("for k in range(3): yield (np.zeros(5),) + (np.zeros(5),) * (k != 1)", "batch 1 of train has another structure than the first"),
        ("for k in range(3): yield {'ab'[k > 1]: np.zeros(5)}", "has another structure than the first batch: x.b; the first"),
        ("for k in range(3): yield np.zeros((5, 2 + k))", "batch 1 of train: an example is x float32 [3], and x float32 [2] in the first"),
        ("for k in range(3): yield np.zeros(5, 'i4' if k else 'i2')", "batch 1 of train: x is int32, and int16 in the first batch"),
        ("for k in range(3): yield np.zeros(5), k / 2", "batch 0 of train: y is a single value, 0.0; the first dimension"),
        ("yield np.zeros(5)\nraise OSError('gone')", "dataset=mine.py:data, line 6: OSError: gone"),
        ("return np.array(['a', 3, 4], dtype=object)", "x mixes types: example 0 is 'a' (str), example 1 is 3 (int). Fix: all numbers"),
        ("return np.array(['a', None] * n, dtype=object)", "is 'a' (str), example 1 is None (NoneType). Fix: fill in what is missing"),
        ("x = np.empty(2 * n, object)\nx[:] = [[1, 2], None] * n\nreturn x", "[1, 2] (list), example 1 is None (NoneType). Fix: fill in"),
        (
            "NAType = type('NAType', (), {'__eq__': lambda *_: 1 / 0, '__ne__': lambda *_: 1 / 0, '__hash__': object.__hash__})\n"
            "x = np.empty(2 * n, object)\nx[:] = ['a', NAType()] * n\nreturn x",
            "Fix: fill in what is missing",
        ),
        ("return [[1, 2], ['a']] * n", "x mixes types: "),
        ("return [[[1], [2, 3]], [[1]]] * n", "x: an example is ragged in more than one dimension; pad all but the first"),
        ("return [[[1]], [1]] * n", "x: its examples have 1 and 2 dimensions; they must have the same"),
        ("return np.zeros(n, 'M8[s]')", "x has dates and times, which no model takes; make them numbers"),
        ("return np.zeros(n, complex)", "x has values of type complex128, which no model takes"),
        ("return np.zeros(n), np.r_[np.zeros(n - 1), np.nan]", "y of example 29 of train is NaN or infinite; no loss can be computed"),
        ("return np.zeros(n), np.zeros(n), np.full(n, np.inf)", "sample_weight of example 0 of train is NaN or infinite"),
        ("return np.zeros(n), np.array([['a', 'b']] * n)", "y has strings, and a loss takes numbers"),
        ("return np.zeros(n), np.array((['a', 'b'] if split == 'train' else ['c', 'c']) * (n // 2))", "'c' is not in train"),
        ("return {1: np.zeros(n)}", "the keys of x are [1]; they must be text"),
        ("return np.array([2**70, 1] * n, dtype=object)", "x has whole numbers of more than 64 bits; make them floats or strings"),
        ("return {'a\\x1b[2J': np.zeros(n), 'b' * 900: np.zeros(3)}", "x.a\\x1b[2J has 30 examples and x.bbb"),
        ("return {}", "the keys of x are none; they must be text"),
        ("return [np.zeros(3)] * 5000", "x is a list of 5,000 arrays, each an input of its own; sequences of different lengths are"),
    ],
)
def test_untrainable_table_is_refused_and_nothing_is_kept(body, message, file):
    """What can't be trained with is refused and nothing is kept."""
    text = refused(source(file, ("" if "yield" in body else NO_VALIDATION) + body).scan)
    assert text.startswith(("dataset=mine.py:data: ", "dataset=mine.py:data, line "))
    assert message in text
    assert not list(file.parent.glob("columns/*"))


def test_a_function_may_not_know_validation(file):
    text = "import numpy as np\ndef data(split):\n    n = {'train': 30, 'TEST': 10}[split]\n    return np.arange(n), np.arange(n)\n"
    file.write_text(text.replace("TEST", "test"))
    assert python_function.PythonFunction("mine.py:data").scan().held_out is None
    file.write_text(text)
    assert "line 3: KeyError: 'test'" in refused(python_function.PythonFunction("mine.py:data").scan)


@pytest.mark.parametrize(("key", "given"), [("target", ("y", None)), ("features", (None, ["a"]))])
def test_images_have_no_columns_to_name(key, given, file):
    file.write_text("import numpy as np\ndef data(split):\n    return [(np.zeros((3, 3), np.uint8), k % 2) for k in range(4)]\n")
    assert f"data.{key}={given[key == 'features']}: dataset=mine.py:data has images with classes" in refused(
        python_function.PythonFunction("mine.py:data", *given).scan
    )
    assert f"data.{key}={given[key == 'features']}: the source `folder` has images" in refused(open_source, "folder", ".", *given)


def test_a_target_divides_the_columns_of_a_dict(file):
    body = NO_VALIDATION + "return {'fare': np.ones(n), 'miles': np.ones(n), 'tips': np.zeros(n)}"
    spec = source(file, body, "tips").scan().table.spec
    assert (spec.structure, spec.names) == ([{"fare": 0, "miles": 1}, 2], ("x.fare", "x.miles", "y"))
    assert source(file, body, "tips", ["miles"]).scan().table.spec.names == ("x.miles", "y")
    assert source(file, body, None, ["miles"]).scan().table.spec.names == ("x.miles",)
    for given, message in (
        (("tip",), "data.target=tip: dataset=mine.py:data has no such column (did you mean tips?); there are: fare, miles, tips"),
        (("tips", ["mile"]), "data.features=mile: dataset=mine.py:data has no such column (did you mean miles?)"),
        (("tips", ["tips"]), "there is no column besides data.target=tips"),
    ):
        assert message in refused(source(file, body, *given).scan)
    arrays = source(file, NO_VALIDATION + "return np.ones(n)", "a")
    assert "data.target and data.features name columns, and it gives" in refused(arrays.scan)


FRAME = """class Series:
    def __init__(self, values): self.values = values
    def to_numpy(self): return self.values
class Frame:
    iloc = None
    def __init__(self, **columns): self.all, self.columns = columns, list(columns)
    def __getitem__(self, name): return Series(self.all[name])
"""


def test_a_frame_is_a_dict_of_its_columns(file):
    body = NO_VALIDATION + "return Frame(a=np.ones(n), b=np.array(['x'] * n, object)), Frame(y=np.zeros(n))['y']"
    assert leaves_of(source(file, body, before=FRAME)) == ["x.a float32", "x.b string", "y float32"]
    body = NO_VALIDATION + "return Frame(a=np.ones(n), b=np.array(['x', 'y'] * (n // 2), object))"
    listing = source(file, body, "b", before=FRAME).scan()
    assert (listing.table.spec.names, listing.classes) == (("x.a", "y"), ["x", "y"])
    twice = NO_VALIDATION + "frame = Frame(a=np.ones(n))\nframe.columns = ['a', 'a']\nreturn frame"
    for target in (None, "a"):
        assert "the frame has the column a twice; rename one" in refused(source(file, twice, target, before=FRAME).scan)


OF_TENSORFLOW = """
import json, os, sys
from pathlib import Path
os.chdir(sys.argv[1])
import numpy as np
from control.datasets.listing import kept_columns
from control.datasets.sources import python_function
from trainer.data.spec import Leaf, Spec
from trainer.common.errors import LockstepError
kept_columns.KEPT = Path("columns")
HEAD = '''import numpy as np, tensorflow as tf, keras
words = [np.arange(k % 4) for k in range(20)]
ragged = tf.ragged.constant([list(w) for w in words], dtype='int32')
class Ten(keras.utils.PyDataset):
    says = 2
    def __len__(self): return self.says
    def __getitem__(self, k):
        if k > 1: raise IndexError
        return np.full((5, 2), k), np.full(5, k)
class More(Ten):
    says = 3
def data(split):
    if split == 'validation': return None
    zeros = tf.data.Dataset.from_tensor_slices((np.zeros((20, 3)), np.arange(20)))
    return '''
CASES = {
    "dataset": "zeros.batch(8)",
    "infinite": "zeros.batch(8).repeat()",
    "unbatched": "zeros",
    "ragged": "tf.data.Dataset.from_tensor_slices(({'w': ragged}, np.arange(20))).batch(8)",
    "padded": "tf.data.Dataset.from_generator(lambda: iter(words), output_signature=tf.TensorSpec([None], tf.int64)).padded_batch(8)",
    "tensors": "({'a': tf.ones((20, 2)), 'w': ragged}, tf.constant(['a', 'b'] * 10))",
    "strings": "tf.data.Dataset.from_tensor_slices(tf.constant(['a', 'b'])).batch(2)",
    "images": "tf.data.Dataset.from_tensor_slices((np.zeros((20, 4, 4, 3), np.uint8), np.arange(20) % 2))",
    "pydataset": "Ten()",
    "pydataset ends early": "More()",
    "sparse": "(tf.sparse.from_dense(tf.eye(4)),)",
}
results = {}
for name, text in CASES.items():
    Path("m.py").write_text(HEAD + text + "\\n")
    try:
        listing = python_function.PythonFunction("m.py:data").scan()
        spec = [str(leaf) for leaf in listing.table.spec.leaves] if listing.table else len(listing.labels["train"])
        results[name] = [spec, listing.count("train"), listing.classes]
    except LockstepError as error:
        results[name] = str(error)
print(json.dumps(results))
"""


def test_what_tensorflow_and_keras_give(tmp_path):
    assert forked.answer(OF_TENSORFLOW, str(tmp_path)) == {
        "dataset": [["x float32 [3]", "y int64"], 20, []],
        "infinite": "dataset=m.py:data: the tf.data.Dataset of train is infinite; leave out repeat(): Lockstep repeats by itself",
        "unbatched": "dataset=m.py:data: batch 0 of train: y is a single value, 0; the first dimension of an array is that of the "
        "examples. Fix: yield batches (tf.data.Dataset: .batch(256))",
        "ragged": [["x.w int32 [?]", "y int64"], 20, []],
        "padded": [["x int64 [?]"], 20, []],
        "tensors": [["x.a float32 [2]", "x.w int32 [?]", "y int32"], 20, ["a", "b"]],
        "strings": [["x string"], 2, []],
        "images": [20, 20, ["0", "1"]],
        "pydataset": [["x int64 [2]", "y int64"], 10, []],
        "pydataset ends early": "dataset=m.py:data: train: the PyDataset ended at batch 2; its __len__ says 3. Fix: make both agree",
        "sparse": "dataset=m.py:data: the data of train: x is a sparse tensor; make it dense (tf.sparse.to_dense), or ragged",
    }


CSV = "miles,company,card,tips,when\n" + "".join(f"{k / 2},C{k % 3},{k % 2 == 0},{k},1{k:02d}\n" for k in range(100))


def table(file, text=CSV, target="tips", features=None, name="trips.csv"):
    path = file.with_name(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    made = detect(str(path))
    assert made["source"] == "columns"
    return open_source(made["source"], made["path"], target, features)


def test_a_csv_file_is_divided_by_row(file):
    made = table(file)
    listing = made.scan()
    assert leaves_of(made) == ["x.miles float32", "x.company string", "x.card bool", "x.when int64", "y int64"]
    assert (listing.name, listing.count("train") + listing.count("test")) == ("trips", 100)
    assert 10 <= listing.count("test") <= 30
    assert listing.note == "there are no files for testing, so data.test_split=0.2 of the rows is held out, drawn by their numbers"
    _, splits = published(made)
    rows = [splits[split].gather(np.arange(len(splits[split]))) for split in ("train", "test")]
    assert sorted(y for _, targets in rows for y in targets.tolist()) == [*range(100)]
    x, y = rows[0]
    assert (x["miles"] * 2 == y).all()
    assert x["company"].tolist() == [b"C%d" % (k % 3) for k in y]
    assert (x["card"] == (y % 2 == 0)).all()
    more = table(file, CSV + "1,C1,True,100,3\n").scan()
    assert more.count("test") in (listing.count("test"), listing.count("test") + 1)


@pytest.mark.parametrize(("share", "held"), [(0.1, 12), (0.2, 22), (0.5, 58)])
def test_share_of_rows_is_for_testing(share, held, file):
    table(file)
    assert open_source("columns", str(file.with_name("trips.csv")), "tips", test_split=share).scan().count("test") == held


@pytest.mark.parametrize(("share", "drawn"), [(0.01, "none"), (0.99, "all")])
def test_share_that_leaves_no_rows_is_refused(share, drawn, file):
    table(file, "a,y\n1,2\n3,4\n5,6\n", "y")
    assert refused(open_source("columns", str(file.with_name("trips.csv")), "y", test_split=share).scan) == (
        f"dataset=trips.csv: data.test_split={share} draws {drawn} of its 3 rows for testing; at least one must be drawn, and one be left. "
        "Fix: another share, as in -e set=data.test_split=0.5, more rows, or a folder with train.csv and test.csv"
    )


def test_a_folder_of_tables_has_its_splits(file, tmp_path):
    (tmp_path / "trips").mkdir()
    for name, first in (("train-0.csv", 0), ("train-1.csv", 10), ("val.csv", 20), ("test.csv", 30)):
        (tmp_path / "trips" / name).write_text("a;y\n" + "".join(f"{k};{k}\n" for k in range(first, first + 10)))
    made = open_source("columns", str(tmp_path / "trips"), "y")
    assert detect(str(tmp_path / "trips"))["source"] == "columns"
    packed, splits = published(made)
    assert (packed.held_out, len(splits["train"]), len(splits["test"])) == (10, 30, 10)
    assert set(splits["train"].gather(packed.order[:10])[1].tolist()) == {*range(20, 30)}
    (tmp_path / "trips" / "train-1.csv").write_text("b;y\n1;2\n")
    assert "its header differs from that of train-0.csv" in refused(open_source("columns", str(tmp_path / "trips"), "y").scan)


def test_table_and_image_folders_are_told_apart(file, tmp_path):
    """Folders of tables and of images are told apart."""
    for split in ("train", "test"):
        (tmp_path / "t" / split).mkdir(parents=True)
        (tmp_path / "t" / split / "part-0.csv").write_text("a,y\n1,2\n3,4\n")
        (tmp_path / "i" / split / "cat").mkdir(parents=True)
    (tmp_path / "i" / "labels.csv").write_text("a,b\n")
    assert detect(str(tmp_path / "t"))["source"] == "columns"
    assert detect(str(tmp_path / "i"))["source"] == "folder"
    assert open_source("columns", str(tmp_path / "t"), "y").scan().count("test") == 2


@pytest.mark.parametrize(
    ("values", "leaf"),
    [
        (["1", "2", ""], "x.a float32"),
        (["1", "2.5", "1e3"], "x.a float32"),
        (["1", "-2", "+3"], "x.a int64"),
        (["1", "x", ""], "x.a string"),
        (["1_0", "2_0", "3_0"], "x.a string"),
        (["true", "False", "TRUE"], "x.a bool"),
        (["true", "1", "TRUE"], "x.a string"),
        (["99999999999999999999", "1", "2"], "x.a string"),
        (["NA", "nan", "3"], "x.a float32"),
        (['"a,b"', '"line\nbreak"', "c"], "x.a string"),
    ],
)
def test_csv_column_type_is_that_of_all_values(values, leaf, file):
    made = table(file, "a,y\n" + "".join(f"{value},1\n" for value in values * 10), "y")
    assert str(made.scan().table.spec.leaves[0]) == leaf


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        # Few examples have a label that is given by hand; sizes S, M and 42 are classes, unless nearly all are numbers.
        ("1,NA\n" * 95 + "2,cat\n3,dog\n" * 20, ["NA", "cat", "dog"]),
        *(("1,42\n2,44\n" * 60 + "3,M\n" * others, ["42", "44", "M"]) for others in (14, 60)),
    ],
)
def test_target_of_names_is_classes(values, classes, file):
    assert table(file, f"a,y\n{values}", "y").scan().classes == classes


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        (CSV, (None,), "dataset=trips.csv: data.target must name the column to predict. Fix: -e set=data.target=when; there are: "),
        (CSV, ("tip",), "data.target=tip: dataset=trips.csv has no such column (did you mean tips?); there are: miles, company, card"),
        (CSV, ("tips", ["mile"]), "data.features=mile: dataset=trips.csv has no such column (did you mean miles?)"),
        (CSV + "1,2,3\n", ("tips",), "trips.csv: row 101 (line 102) has 3 values, and the header names 5 columns. Fix or remove it: 1,2,3"),
        (CSV + "\n\n1,2,3,4,5,6\n", ("tips",), "trips.csv: row 101 (line 104) has 6 values, and the header names 5 columns"),
        (CSV + ",,,,\n", ("tips",), "y of example"),
        ("", ("y",), "trips.csv: its first line is empty; it must name each column once"),
        ("a,a\n1,2\n", ("a",), "trips.csv: its first line has 'a' twice; it must name each column once"),
        ("a,,y\n1,2,3\n", ("y",), "trips.csv: its first line has no name for column 2"),
        ("a,y\n", ("y",), "dataset=trips.csv: train is empty; it needs at least one example"),
        ("y\n1\n2\n", ("y",), "there is no column besides data.target=y"),
        (
            "a,y\n" + "1,2.5\n" * 99 + "1,?\n",
            ("y",),
            "data.target=y: '?' in row 100 of trips.csv is no number, and 99 of 100 values are; with",
        ),
        ("a;y\n" + "1;2\n" * 9 + "1;4,69\n" * 9, ("y",), "'4,69' in row 10 of trips.csv has a decimal comma, and would name a class. Fix"),
        ("a,y\n" + "1,yes\n2,no\n" * 9 + "3, \n", ("y",), "data.target=y: row 19 of trips.csv has no value, which would be a class of"),
        ("y,a\n" + "1,x\n" * 9 + '0,"great\n' + "1,x\n" * 9, ("y",), "trips.csv, line 20: unexpected end of data; fix or remove that row"),
        ('y,a\n1,"so" they said\n', ("y",), """trips.csv, line 2: ',' expected after '"'; fix or remove that row"""),
        (CSV.replace("C1", "\udcff"), ("tips",), "trips.csv: not UTF-8 (invalid start byte at byte"),
        (CSV.replace("C1", "C" * 2**25, 1), ("tips",), "trips.csv, line 3: field larger than field limit"),
    ],
)
def test_table_that_cant_be_trained_with_is_refused(text, given, message, file):
    path = file.with_name("trips.csv")
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert message in refused(open_source("columns", str(path), *given).scan)
    assert not list(file.parent.glob("columns/*"))


def test_column_of_almost_numbers_is_warned_of(file):
    """Strings that are meant, as the names of companies, are not."""
    rows = "".join(f"{number},C{number},{number}\n" for number in range(100))
    made = table(file, f"power,company,y\n{rows}?,C7,1\n,C8,2\n", "y")
    expected = (
        "dataset=trips.csv has columns of strings that are numbers but for a few: power: '?' in row 101 of trips.csv is no number, and 100 "
        "of 101 values are. Fix, if numbers are meant: leave a missing value empty, or write NA"
    )
    assert made.scan().warnings == [expected]
    # As kept.
    assert made.scan().warnings == [expected]
    blank = table(file, f"power,company,y\n{rows} ,C7,1\n", "y", name="blank.csv")
    assert "power: ' ' in row 101 of blank.csv is no number, and 100 of 101 values are" in blank.scan().warnings[0]


def test_tables_of_two_kinds_in_folder_are_refused(file, tmp_path):
    (tmp_path / "both").mkdir()
    for name in ("a.csv", "b.parquet"):
        (tmp_path / "both" / name).write_text("")
    assert ".csv and .parquet in it; give a CSV or Parquet file" in refused(open_source("columns", str(tmp_path / "both"), "y").scan)


def test_parquet_without_pyarrow_says_what_to_install(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file.with_name("t.parquet").write_bytes(b"")
    assert "reading Parquet needs pyarrow. Fix: .venv/bin/python -m pip install pyarrow" in refused(
        open_source("columns", str(file.with_name("t.parquet")), "y").scan
    )


def imported_pyarrow():
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: nothing but Parquet needs it")
    from pyarrow import parquet

    return pyarrow, parquet


def test_parquet_is_read_by_its_types(file):
    pyarrow, parquet = imported_pyarrow()

    count = 50
    contents = {
        "age": pyarrow.array([None if k == 49 else k for k in range(count)], "int32"),
        "fare": pyarrow.array([k / 2 for k in range(count)]),
        "name": pyarrow.array([f"n{k % 3}" for k in range(count)]).dictionary_encode(),
        "words": pyarrow.array([[*range(k % 4)] for k in range(count)], pyarrow.list_(pyarrow.int64())),
        "pixels": pyarrow.array([[k, k] for k in range(count)], pyarrow.list_(pyarrow.uint8(), 2)),
        "y": pyarrow.array([k % 2 == 0 for k in range(count)]),
    }
    path = file.with_name("t.parquet")
    parquet.write_table(pyarrow.table(contents), path)
    made = open_source("columns", str(path), "y")
    leaves = [str(leaf) for leaf in made.scan().table.spec.leaves]
    assert leaves == ["x.age float32", "x.fare float32", "x.name string", "x.words int64 [?]", "x.pixels uint8 [2]", "y bool"]
    x, y = published(made)[1]["train"].gather(np.arange(5))
    rows = (x["fare"] * 2).astype(int)
    assert (x["pixels"][:, 0].tolist(), y.tolist()) == (rows.tolist(), (rows % 2 == 0).tolist())
    assert x["words"].sum(axis=1).tolist() == [sum(range(k % 4)) for k in rows]
    path.write_bytes(path.read_bytes()[:100])
    assert "not Parquet" in refused(open_source("columns", str(path), "y").scan)


def test_published_table_is_repaired_only_when_damaged(file, monkeypatch):
    """An unchanged table is published once and a damaged one again."""
    made, packs = table(file), file.parent / "packs"
    first = publish.publish(made, packs, False, lambda *_: None)
    place = publish.place_of(packs, first.sha256)
    assert publish.published(made.scan(), packs, False).manifest == first.sha256
    assert publish._damaged_files(place) == []
    for damage in (Path.unlink, flip_a_bit):
        damage(place.folder / "train-rows.npy")
        assert publish._damaged_files(place) == ["train-rows.npy"]
        assert publish.published(made.scan(), packs, False) is None
        assert publish.publish(made, packs, False, lambda *_: None).sha256 == first.sha256
        assert publish._damaged_files(place) == []
    assert manifest.load(place).table == made.scan().table


def test_kept_files_that_have_changed_are_not_published(file):
    made = table(file)
    made.scan()
    (rows,) = file.parent.glob("columns/*/train-rows.npy")
    flip_a_bit(rows)
    text = refused(publish.publish, made, file.parent / "packs", False, lambda *_: None)
    assert text == f"{rows} has changed since it was written: the disk is damaged, or somebody wrote there. Fix: rm -r {rows.parent}"
    assert list((file.parent / "packs").glob("*/manifest.json")) == []


@pytest.fixture
def request_of(file, tmp_path, monkeypatch):
    monkeypatch.setattr(
        model_size, "_parameters", lambda config, classes, request, spec, weights: {"total": len(spec["leaves"]), "trainable": 1}
    )
    file.write_text("def build():\n    pass\n")

    def make(**options):
        hosts = [Host(name="pi1", address="10.0.0.1", port=12345)]
        places = {"runs": tmp_path / "runs", "packs": tmp_path / "packs", "parameter_cache": tmp_path / "parameters"}
        return plan_request.Request(asked=plan_request.OperatorRequest.of(options), hosts=hosts, write=True, **places)

    return make


def test_the_plan_of_columns(file, request_of, monkeypatch):
    monkeypatch.setattr(resolve.model_options, "section_of", lambda section: section)
    table(file)
    request = request_of(dataset="trips.csv", model="mine.py:build", set="data.target=tips,data.features=[miles,company]")
    planned = plan.make_plan(request)
    spec = planned.dataset["spec"]
    assert spec["structure"] == [{"miles": 0, "company": 1}, 2]
    assert planned.parameters["total"] == 3
    assert planned.config["data"]["features"] == ["miles", "company"]
    assert planned.counts["train_images"] + planned.counts["validation_images"] + planned.dataset["test"] == 100
    located = replace(planned, hosts=[Host(name="pi1", address="10.0.0.1", port=1)])
    lines = plan_text.plan(located, "runs").splitlines()
    assert any(line.split(None, 1) == ["inputs", "x.miles float32, x.company string"] for line in lines)
    assert any(line.split(None, 1) == ["outputs", "y int64"] for line in lines)
    assert "test examples" in "\n".join(lines)
    assert "images" not in "\n".join(lines)
    assert planned.needs["disk_mb"] >= host_needs.LOGS_MB


def test_columns_need_a_model(file, request_of):
    table(file)
    request = request_of(dataset="trips.csv", set="data.target=tips")
    assert refused(plan.make_plan, request) == (
        "model lecture_cnn takes images with classes, and trips has columns (x.miles float32, x.company string, x.card bool, x.when "
        "int64). Fix: your own model, -e model=FILE.py:FUNCTION"
    )


@pytest.mark.parametrize("features", [[], ["a", "a"]])
def test_features_are_named_once(features):
    assert "data.features" in refused(configurations.build, {"data": {"features": features}})


def test_validation_that_repeats_the_test_is_a_warning(file):
    """Long sequences are compared whole."""
    body = (
        "if split == 'train': return np.array([np.zeros(1), np.zeros(2), np.zeros(3)], object), np.zeros(3)\n"
        "x = np.array([np.zeros(5000), np.zeros(1)], object)\nx[0][2500] = split == 'test'\nreturn x, np.zeros(2)"
    )
    other, same = source(file, body).scan(), source(file, body.replace("split == 'test'", "0")).scan()
    assert (other.held_out, other.warnings, same.held_out) == (2, [], 2)
    assert "validation and test have the same examples" in same.warnings[-1]


def test_a_report_of_columns_names_the_examples():
    spec = Spec([0, 1], (Leaf("x", "float32", (4,)), Leaf("y", "float32", ()))).to_json()
    dataset = {"name": "trips", "classes": [], "spec": spec, "test": 10, "digest": "d" * 64}
    record = LaunchRecord(dataset=dataset, counts={"train_images": 30, "validation_images": 5})
    run = types.SimpleNamespace(noun="example", record=record)
    assert trained._data(run).startswith(
        "The dataset `trips` has examples of `x float32 [4]` and `y float32`: 30 examples were used for training, 5 for validation"
    )


def test_iterable_of_any_kind_gives_batches_or_images(file):
    before = "class Loader:\n    def __init__(self, items): self.items = items\n    def __iter__(self): return iter(self.items)\n"
    batches = NO_VALIDATION + "return Loader([[np.ones((5, 2)), np.zeros(5)]] * 4)"
    assert source(file, batches, before=before).scan().count("train") == 20
    images = "return Loader([(np.zeros((3, 3), np.uint8), k % 2) for k in range(4)])"
    assert source(file, images, before=before).scan().labels["train"] == [0, 1, 0, 1]


def test_kept_dataset_that_lost_a_file_is_remade(file):
    made = table(file)
    first = made.scan()
    (rows,) = file.parent.glob("columns/*/train-rows.npy")
    rows.unlink()
    assert made.scan() == first
    assert rows.is_file()


@pytest.mark.parametrize(("name", "how"), [("y", "not"), ("a", "twice")])
def test_parquet_files_have_the_same_columns(file, name, how):
    pyarrow, parquet = imported_pyarrow()

    folder = file.with_name("parts")
    folder.mkdir()
    numbers = pyarrow.array([1.0, 2.0])
    parquet.write_table(pyarrow.table({"a": numbers, "y": numbers}), folder / "train.parquet")
    others = {"not": ["a"], "twice": ["a", "a", "y"]}[how]
    parquet.write_table(pyarrow.Table.from_arrays([numbers] * len(others), names=others), folder / "test.parquet")
    message = f"test.parquet: it has the column {name} {how}; give all files the same columns, each once"
    assert message in refused(open_source("columns", str(folder), "y").scan)


def test_parquet_numbers_that_floats_round_are_warned_of(file):
    pyarrow, parquet = imported_pyarrow()

    path = file.with_name("ids.parquet")
    parquet.write_table(pyarrow.table({"id": pyarrow.array([2**60 + 1, 2**50 + 1, None] * 20), "y": [1.0] * 60}), path)
    assert any("that float32 rounds: x.id" in warning for warning in open_source("columns", str(path), "y").scan().warnings)
