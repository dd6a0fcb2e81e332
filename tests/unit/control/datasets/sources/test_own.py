"""Models and images from a user's own file: what is accepted, what is refused, and with which words."""

import json
import sys

import pytest

from control.common import model_options, user_files
from control.datasets.listing.registry import detect
from control.datasets.publishing import publish
from control.datasets.sources import python_function as data
from control.runs.planning.plan_request import OperatorRequest
from tests.unit import forked
from tests.unit.refusals import refusal as refused
from tests.unit.samples import image_bytes
from trainer.data.images import decode
from trainer.user_code import user_function

MODEL = """import keras

def build(size, classes, width=4, *, deep=False):
    return keras.Sequential([keras.Input(size), keras.layers.Flatten(), keras.layers.Dense(width), keras.layers.Dense(classes)])

def anything(size, classes, **options):
    return options

def other(classes, size):
    pass
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data, "KEPT", tmp_path / "kept")
    (tmp_path / "mine.py").write_text(MODEL)
    return tmp_path / "mine.py"


def test_file_called_like_module_takes_no_ones_place(file):
    file.with_name("random.py").write_text(
        "from __future__ import annotations\nimport random\ndef build(size, classes):\n    return random.Random\n"
    )
    before = sys.modules["random"]
    loaded = user_function.load("model", user_files.find("model", "random.py:build"))
    assert loaded(0, 0) is before.Random
    assert sys.modules["random"] is before


def test_the_section_holds_the_whole_file(file):
    assert user_files.model_section("mine.py:build") == {"name": "own", "file": "mine.py", "function": "build", "source": MODEL}
    made = OperatorRequest.of({"model": "mine.py:build", "set": "model.width=8"}).overrides
    assert (made["model"]["name"], made["model.width"]) == ("own", 8)


EXPECTED = "expected FILE.py:FUNCTION, as in model=my_models.py:build"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("mine.py", EXPECTED),
        ("deep_cnn", f"{EXPECTED}; for the configuration of that name: -e config=deep_cnn"),
        ("mine.txt:build", EXPECTED),
        ("mine.py:a b", EXPECTED),
        ("yours.py:build", "no such file: "),
        ("mine.py:biuld", "no such function at the top of the file (did you mean build?); there are: build, anything, other"),
    ],
)
def test_what_names_no_function_is_refused(given, message, file):
    assert refused(user_files.model_section, given).startswith(f"model={given}: {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"def build(size, classes:\n", "not Python: '(' was never closed (mine.py, line 1)"),
        (b"# \xff\n", "mine.py: it is not UTF-8; save it as UTF-8"),
        (b"#" * (2**20 + 1), "mine.py: the file has 1,048,577 bytes; it becomes a part of the run's configuration, so at most 1,048,576"),
    ],
)
def test_a_file_that_cant_be_read_is_refused(text, message, file):
    file.write_bytes(text)
    assert refused(user_files.model_section, "mine.py:build") == f"model=mine.py:build: {message}"


def test_options_are_checked_by_name_without_running_file(file):
    section = user_files.model_section("mine.py:build")
    assert model_options.options_of({**section, "width": 8, "deep": True}) == {"width": 8, "deep": True}
    assert refused(model_options.options_of, {**section, "widht": 8}) == (
        "model.widht: mine.py:build has no such parameter (did you mean width?); known: model.width, model.deep"
    )
    assert model_options.options_of({**user_files.model_section("mine.py:anything"), "free": 1}) == {"free": 1}
    assert refused(model_options.options_of, user_files.model_section("mine.py:other")) == (
        "model=mine.py:other: its parameter classes has no value; give it with -e set=model.classes=VALUE. "
        "A classifier of images begins its parameters with (size, classes)"
    )
    assert refused(model_options.options_of, {"name": "own"}) == ("model.file: missing; give your own model as -e model=FILE.py:FUNCTION")
    assert "keras" not in user_function.__dict__


BUILT = """
import json, sys
from pathlib import Path
from trainer import models
from trainer.worker import process
process.quiet_tensorflow()
from trainer.common.errors import ConfigError
from control.runs.planning import model_errors
from trainer.user_code import user_function as functions
HEAD = "import keras\\nfrom keras import layers\\nprint('chatter')\\n"
CASES = {
    "fits": "return keras.Sequential([keras.Input(size), layers.Flatten(), layers.Dense(classes)])",
    "raises": "\\n    return layers.Dense(1 // 0)",
    "no model": "return 3",
    "not built": "return keras.Sequential([layers.Flatten(), layers.Dense(classes)])",
    "own step": "\\n    class Mine(keras.Model):\\n        def train_step(self, data):\\n            return {}"
    "\\n    inputs = keras.Input(size)"
    "\\n    return Mine(inputs, layers.Dense(classes)(layers.Flatten()(inputs)))",
    "lambda": "return keras.Sequential([keras.Input(size), layers.Lambda(lambda x: x / 255), layers.Flatten(), layers.Dense(classes)])",
    "nameless": "\\n    class Twice(layers.Layer):\\n        def call(self, x):\\n            return 2 * x"
    "\\n    return keras.Sequential([keras.Input(size), Twice(), layers.Flatten(), layers.Dense(classes)])",
    "built by itself": "\\n    class Mine(keras.Model):\\n        pass\\n    made = Mine()\\n    made.built = True\\n    return made",
    "other input": "return keras.Sequential([keras.Input((5, 5, 1)), layers.Flatten(), layers.Dense(classes)])",
    "other output": "return keras.Sequential([keras.Input(size), layers.Flatten(), layers.Dense(classes + 1)])",
    "softmax layer": "return keras.Sequential([keras.Input(size), layers.Flatten(), layers.Dense(classes), layers.Softmax()])",
    "softmax": "return keras.Sequential([keras.Input(size), layers.Flatten(), layers.Dense(classes, activation='softmax')])",
}
found = {}
for name, body in CASES.items():
    source = HEAD + "def build(size, classes):\\n    " + body + "\\n"
    try:
        section = {"name": "own", "file": "m.py", "function": "build", "source": source}
        model = models.build(section, (4, 4, 1), 3)
        model_errors.check_reopens(section, model)
        found[name] = model.count_params()
    except ConfigError as error:
        found[name] = str(error)
CUSTOM = "import keras\\n"
CUSTOM += "@keras.saving.register_keras_serializable('mine')\\n"
CUSTOM += "class Twice(keras.layers.Layer):\\n    def call(self, x):\\n        return 2 * x\\n"
CUSTOM += "def build(size, classes):\\n    layers = [keras.layers.Flatten(), keras.layers.Dense(classes), Twice()]\\n"
CUSTOM += "    return keras.Sequential([keras.Input(size), *layers])\\n"
section = {"name": "own", "file": "m.py", "function": "build", "source": CUSTOM}
import keras
path = Path(sys.argv[1]) / "snapshot.keras"
models.build(section, (4, 4, 1), 3).save(path)
keras.saving.get_custom_objects().clear()
functions._LOADED.clear()
try:
    keras.models.load_model(path, compile=False)
    found["known before"] = True
except TypeError:
    found["known before"] = False
functions.load("model", functions.Function.of(section))
found["loaded"] = keras.models.load_model(path, compile=False).count_params()
print(json.dumps(found))
"""


def test_what_a_function_returns_is_checked_and_reopens(tmp_path):
    done = forked.run("-c", BUILT, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "chatter" not in done.stdout
    actual = json.loads(done.stdout.splitlines()[-1])
    for name, why in (("lambda", "Lambda"), ("nameless", "Twice")):
        first, second = actual.pop(name).splitlines()
        assert first.startswith("model=m.py:build: ")
        assert why in first
        assert second.startswith("Its snapshots could not be opened again: decorate each class of your own with @keras.saving.")
    assert actual.pop("own step") == "model=m.py:build: it has a train_step of its own, which would not be used here; leave it out"
    assert actual == {
        "fits": 16 * 3 + 3,
        "raises": "model=m.py:build, line 6: ZeroDivisionError: integer division or modulo by zero",
        "no model": "model=m.py:build: it returns int; it must return a keras.Model",
        "not built": "model=m.py:build: the model has no input shape; begin it with keras.Input(size)",
        "built by itself": "model=m.py:build: the model has no input shape; begin it with keras.Input(size)",
        "other input": "model=m.py:build: its input is (None, 5, 5, 1); it must be (None, 4, 4, 1), as set by data.image_size",
        "other output": "model=m.py:build: its output is (None, 4); it must be (None, 3), one number per class",
        "softmax layer": "model=m.py:build: it ends with softmax; leave that out: the loss takes logits",
        "softmax": "model=m.py:build: it ends with softmax; leave that out: the loss takes logits",
        "known before": False,
        "loaded": 16 * 3 + 3,
    }


IMAGES = """import numpy as np
def images(split):
    print("chatter")
    for number in range({count}):
        yield {image}, {label}
"""


def written(file, image="np.full((4, 5, 3), number, np.uint8)", label="number % 2", count=4):
    file.write_text(IMAGES.format(image=image, label=label, count=count))
    return data.PythonFunction("mine.py:images")


def test_images_of_function_are_listed_read_and_published(file, capsys, tmp_path):
    source = written(file, "np.full((4, 5, 3), number, np.uint8)[:, :, : 1 + 2 * (split == 'test')]")
    assert detect("mine.py:images") == {"source": "own", "path": f"{file}:images"}
    listing = source.scan()
    assert (listing.name, listing.classes, listing.labels["train"]) == ("mine", ["0", "1"], [0, 1, 0, 1])
    assert [(decode(source.read(split, 3)) == 3).all() for split in ("train", "test")] == [True, True]
    assert capsys.readouterr().out == ""
    made = publish.publish(source, tmp_path / "packs", False, lambda *_: None)
    assert (made.train.labels, made.test.labels) == ([0, 1, 0, 1], [0, 1, 0, 1])


def test_a_function_runs_once_until_its_file_changes(file):
    text = "import warnings\n" + IMAGES.format(image="np.zeros((4, 4), np.uint8)", label="number % 2", count=4)
    file.write_text(text.replace('print("chatter")', "open('ran', 'a').write('x')\n    warnings.warn('blurred ones are left out')"))
    first = data.PythonFunction("mine.py:images").scan()
    assert first.warnings == ["dataset=mine.py:images: blurred ones are left out"]
    assert data.PythonFunction("mine.py:images").scan() == first
    assert (file.parent / "ran").read_text() == "xx", "for training and for testing"
    file.write_text(file.read_text() + "# changed\n")
    assert data.PythonFunction("mine.py:images").scan().fingerprint != first.fingerprint
    assert (file.parent / "ran").read_text() == "xxxx"


def test_images_may_be_paths_and_bytes(file):
    (file.parent / "a.png").write_bytes(image_bytes(1))
    source = written(file, "('a.png', open('a.png', 'rb').read())[number % 2]", "('cat', 'dog')[number % 2]")
    listing = source.scan()
    assert listing.classes == ["cat", "dog"]
    assert source.read("train", 0) == source.read("train", 1) == image_bytes(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": "1 / 0"}, "dataset=mine.py:images, line 5: ZeroDivisionError: division by zero"),
        ({"image": "np.zeros((4, 4))"}, "image 0 of train is an array [4, 4] of float64; a function gives pairs"),
        ({"image": "'nowhere.png'"}, "image 0 of train: nowhere.png: No such file or directory"),
        ({"label": "None"}, "the class of number 0 of train is None (NoneType); a function gives pairs"),
        ({"label": "True"}, "the class of number 0 of train is True (bool); "),
        ({"label": "0.5"}, "the class of number 0 of train is 0.5 (float); "),
        ({"label": "np.array([0, 1])"}, "the class of number 0 of train is array([0, 1]) (ndarray); "),
        ({"label": "[[0], [0, 1]]"}, "the class of number 0 of train is [[0], [0, 1]] (list); "),
        ({"label": "0, 1"}, "number 0 of train is (array("),
        ({"label": "0"}, "at least two classes are needed, found: 0"),
        ({"count": 0}, "train is empty; it needs at least one example. Fix: "),
        ({"label": "number if split == 'train' else 0"}, "test has no image of class 1; train and test must hold the same classes"),
    ],
)
def test_unusable_images_are_refused_and_nothing_is_kept(change, message, file):
    source = written(file, **change)
    shown = refused(source.scan)
    assert shown.startswith(("dataset=mine.py:images: ", "dataset=mine.py:images, line "))
    assert message in shown
    assert not list(file.parent.glob("kept/.part-*"))


@pytest.mark.parametrize("kind", ["int", "np.int64", "np.uint8", "np.array", "lambda n: np.array([n])", "str"])
def test_classes_are_whole_numbers_in_their_order(kind, file):
    listing = written(file, label=f"({kind})(number % 11)", count=22).scan()
    assert listing.classes == [str(number) for number in range(11)]
    assert listing.labels["test"] == [*range(11)] * 2


def test_images_are_taken_one_at_a_time(file):
    file.write_text(
        "import numpy as np, pathlib\nalive = 0\nclass Image(bytes):\n    def __del__(self):\n        global alive\n        alive -= 1\n"
        "def images(split):\n    global alive\n    for number in range(20):\n        alive += 1\n        assert alive < 4\n"
        f"        yield Image({image_bytes(1)!r}), number % 2\n"
    )
    assert data.PythonFunction("mine.py:images").scan().labels["train"] == [0, 1] * 10


def test_file_finds_its_neighbours_and_copies_differ(file, tmp_path):
    """A file finds what lies beside it and its copy is another dataset."""
    text = "from pathlib import Path\nHERE = Path(__file__).parent\n"
    text += "def images(split):\n    for name in ('a', 'b'):\n        yield HERE / f'{name}.png', name\n"
    for number, folder in enumerate(("one", "other")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(text)
        (tmp_path / folder / "a.png").write_bytes(image_bytes(number))
        (tmp_path / folder / "b.png").write_bytes(image_bytes(number))
    sources = [data.PythonFunction(f"{folder}/mine.py:images") for folder in ("one", "other")]
    listings = [source.scan() for source in sources]
    assert [source.read("train", 0) for source in sources] == [image_bytes(0), image_bytes(1)]
    assert listings[0].fingerprint != listings[1].fingerprint


def test_a_missing_file_is_named():
    assert refused(data.PythonFunction, "nowhere.py:f").startswith("dataset=nowhere.py:f: no such file")
