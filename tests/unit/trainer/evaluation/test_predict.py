"""What a model predicts of new examples, by name; and what an evaluation says beside the metrics."""

import keras
import numpy as np
import pytest
from keras import layers

from control.common import configurations, user_files
from control.datasets.publishing.new_examples import Parts
from trainer.common.errors import LockstepError
from trainer.common.files import write_text
from trainer.config import loading
from trainer.data.manifest import Manifest, Records
from trainer.data.spec import Leaf, Spec, mapped, of_images
from trainer.evaluation import evaluate, measures, outputs, predict
from trainer.rundir.metrics_log import Metrics
from trainer.step import worker_step

ROWS = Spec([{"a": 0, "text": 1}, 2], (Leaf("x.a", "float32", (3,)), Leaf("x.text", "string", ()), Leaf("y", "int64", ())))
MODELS = """
import keras
from keras import layers

def inputs():
    a, text = keras.Input((3,), name="a"), keras.Input((), dtype="string", name="text")
    word = layers.StringLookup(vocabulary=["cat", "dog"], output_mode="one_hot")(text)
    return {"a": a, "text": text}, layers.Concatenate()([a, word])

def compiled(x, outputs, loss="mse"):
    model = keras.Model(x, outputs)
    model.compile("sgd", loss)
    return model

def keys():
    x, h = inputs()
    return compiled(x, {"low": layers.Dense(1)(h), "high": layers.Reshape((1, 2))(layers.Dense(2)(h))}, {"low": "mse", "high": None})

def several():
    x, h = inputs()
    return compiled(x, [layers.Dense(1, name="one")(h), layers.Dense(2, name="two", dtype="bfloat16")(h)], ["mse", None])

def kinds():
    x, h = inputs()
    return compiled(x, layers.Dense(4, name="kind")(h), keras.losses.SparseCategoricalCrossentropy(from_logits=True))

def scalar():
    x, h = inputs()
    return compiled(x, layers.Lambda(lambda h: keras.ops.sum(h), output_shape=())(h))

@keras.saving.register_keras_serializable()
class Doubled(keras.Model):
    def predict_step(self, data):
        return 2 * super().predict_step(data)

def doubled():
    x, h = inputs()
    model = Doubled(x, layers.Dense(1, name="one")(h))
    model.compile("sgd", "mse")
    return model
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "mine.py").write_text(MODELS)
    return lambda name: loading.build({"model": user_files.model_section(f"{tmp_path}/mine.py:{name}")})


@pytest.mark.parametrize(
    ("model", "outputs", "goals"),
    [
        ("keys", [Leaf("low", "float32", (1,)), Leaf("high", "float32", (1, 2))], {"low": measures.Numbers(1), "high": None}),
        ("several", [Leaf("one", "float32", (1,)), Leaf("two", "float32", (2,))], {"one": measures.Numbers(1), "two": None}),
        ("kinds", [Leaf("kind", "float32", (4,))], {"kind": measures.Classes(4)}),
    ],
)
def test_outputs_are_named_as_in_the_model(config, model, outputs, goals):
    made = predict.build(config(model), 0, ROWS)
    assert sorted(map(str, made.outputs)) == sorted(map(str, outputs))
    assert dict(zip([leaf.name for leaf in made.outputs], made.goals, strict=True)) == goals


def test_an_output_without_examples_is_refused(config):
    with pytest.raises(LockstepError, match=r"has the shape \(\); its first dimension must be that of the examples"):
        predict.build(config("scalar"), 0, ROWS)


def test_a_classifier_of_images_gives_probabilities():
    made = predict.build(loading.build({"model": {"name": "lecture_cnn"}, "data": {"image_size": [28, 28, 1]}}), 3, of_images((28, 28, 1)))
    assert made.outputs == (Leaf("probability", "float32", (3,)),)
    (chances,) = made.call((np.zeros((2, 28, 28, 1), np.uint8),))
    assert np.sum(chances, axis=1) == pytest.approx([1, 1])


@pytest.mark.parametrize("model", ["keys", "doubled"])
def test_a_hosts_part_is_predicted_as_keras_does(config, model, tmp_path):
    made, random = config(model), np.random.default_rng(0)
    count = predict.BLOCK + 9
    x = {"a": random.normal(size=(count, 3)).astype(np.float32), "text": np.array(["cat", "dog", "emu"], object)[np.arange(count) % 3]}
    parts = Parts(tmp_path / "parts", ROWS.inputs, 1)
    parts.append(list(x.values()))
    parts.close()
    parts.write_jobs(ROWS, 0)
    folder = tmp_path / "predict"
    folder.mkdir()
    (tmp_path / "parts/0").rename(folder / predict.DATA)
    write_text(folder / predict.CONFIG, configurations.dump(made))
    built = predict.build(made, 0, ROWS)
    built.model.set_weights([weight + 0.1 for weight in built.model.get_weights()])
    built.model.save(folder / predict.MODEL)
    predict.predict(folder, Metrics(folder / "metrics.jsonl"))
    expected = built.model.predict({name: keras.ops.convert_to_tensor(values) for name, values in x.items()}, verbose=0)
    for number, leaf in enumerate(built.outputs):
        given = np.load(folder / predict.output_name(number))
        assert given.dtype == np.float32
        np.testing.assert_allclose(given, expected[leaf.name] if isinstance(expected, dict) else expected, rtol=1e-5, atol=1e-6)


# --- evaluations


class Rows:
    """Examples of a split."""

    def __init__(self, x, y):
        several = isinstance(y, dict)
        parts = {"x": x} | ({f"y.{name}": part for name, part in y.items()} if several else {"y": y})
        leaves = tuple(Leaf(name, part.dtype.name, part.shape[1:]) for name, part in parts.items())
        self.spec = Spec([0, {name: place for place, name in enumerate(y, 1)} if several else 1], leaves)
        self.data = (x, y)

    def __len__(self):
        return len(self.data[0])

    def halves(self):
        """Two batches."""
        half = len(self) // 2
        return [mapped(lambda part, rows=rows: part[rows], self.data) for rows in (slice(None, half), slice(half, None))]


def evaluated(model, x, y, classes=()):
    """The evaluation of a compiled model."""
    examples, empty = Rows(x.astype(np.float32), y), Records([], [], [])
    manifest = Manifest("", list(classes), None, [], {}, empty, empty, 0, [])
    worker_step.build(model, examples.spec)
    return evaluate._metrics(model, manifest, examples)(iter(examples.halves()))


def measured(loss, outputs, y, classes=()):
    """What the only output of a model gets wrong, whose outputs are its inputs."""
    model = keras.Sequential([keras.Input(outputs.shape[1:]), layers.Identity()])
    model.compile("sgd", loss)
    (output,) = evaluated(model, outputs, y, classes)["outputs"]
    assert output.pop("name") == ""
    return output


def test_a_compiled_classifier_has_a_confusion_matrix():
    logits = np.array([[3, 0, 0], [0, 3, 0], [0, 3, 0], [0, 0, 3]])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    actual = measured(loss, logits, np.array([0, 1, 2, 2]), ["cat", "dog", "emu"])
    assert actual == {"classes": ["cat", "dog", "emu"], "confusion": [[1, 0, 0], [0, 1, 0], [0, 1, 1]]}
    one_hot = measured("categorical_crossentropy", np.eye(3)[[0, 1, 1, 2]], np.eye(3, dtype=np.float32)[[0, 1, 2, 2]])
    assert one_hot == {"classes": ["0", "1", "2"], "confusion": actual["confusion"]}


class OfMyOwn(keras.losses.BinaryCrossentropy):
    """A loss known by the class that it is derived from."""


CHANCES, LOGARITHMS = [0.1, 0.4, 0.9, 0.6], [-2, -0.5, 2, 0.3]


@pytest.mark.parametrize(
    ("loss", "outputs"),
    [
        ("binary_crossentropy", CHANCES),
        (OfMyOwn(), CHANCES),
        (keras.losses.BinaryFocalCrossentropy(from_logits=True), LOGARITHMS),
    ],
)
def test_a_single_output_is_judged_by_its_threshold(loss, outputs):
    actual = measured(loss, np.array(outputs)[:, None], np.array([0, 1, 1, 1], np.float32)[:, None], ["no", "yes"])
    assert actual["confusion"] == [[1, 0], [1, 2]]


@pytest.mark.parametrize("loss", ["mse", "huber", keras.losses.LogCosh()])
def test_a_regression_has_errors(loss):
    actual = measured(loss, np.array([[1.0], [2], [3], [4]]), np.array([1, 1, 1, 1], np.float32)[:, None])
    assert (actual["errors"]["mean"], actual["errors"]["largest"], actual["errors"]["values"]) == (1.5, 3, 4)


def distance(y, p):
    return keras.ops.mean((y - p) ** 2, axis=-1)


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        ("cosine_similarity", "its loss is cosine_similarity, of an output [rows,3] and a target [rows,3]"),
        (distance, "its loss is distance, of an output [rows,3] and a target [rows,3]"),
        (["mse", "mae"], "it has several losses"),
    ],
)
def test_what_has_metrics_only_says_why(loss, why):
    assert measured(loss, np.ones((4, 3)), np.ones((4, 3), np.float32)) == {"why": why}


class Distilled(keras.Model):
    """Its validation hides what it predicts."""

    def test_step(self, data):
        self._loss_tracker.update_state(keras.ops.mean((self(data[0]) - data[1]) ** 2))
        return self.get_metrics_result()


def test_test_step_of_models_own_is_named():
    x = keras.Input((1,))
    model = Distilled(x, layers.Identity()(x))
    model.compile("sgd", "mse")
    actual = evaluated(model, np.ones((4, 1)), np.ones((4, 1), np.float32))
    assert actual["outputs"] == [{"name": "", "why": "the model has a test_step of its own"}]


# In alphabetical order, as Keras flattens, the outputs would be the other way round.
TARGETS = {
    "size": np.array([[1.0], [2.0], [3.0], [4.0]], np.float32),
    "kind": np.array([0, 1, 2, 2]),
    "extra": np.zeros((4, 3), np.float32),
}
LOGITS = np.array([[3, 0, 0], [0, 3, 0], [0, 3, 0], [0, 0, 3.0]])
LOSSES = {"size": "mae", "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "extra": "cosine_similarity"}


@pytest.mark.parametrize(
    ("named", "losses"),
    [(True, LOSSES), (False, [*LOSSES.values()]), (False, LOSSES)],
    ids=["a dict", "a list", "a list with losses by name"],
)
def test_each_output_is_judged_by_its_own(named, losses):
    """Each of several outputs is judged by its own loss and target."""
    x = keras.Input((3,))
    total = layers.Lambda(lambda x: keras.ops.sum(x, axis=1, keepdims=True), output_shape=(1,), name="size")(x)
    outputs = {"size": total, "kind": layers.Identity(name="kind")(x), "extra": layers.Identity(name="extra")(x)}
    outputs = outputs if named else [*outputs.values()]
    model = keras.Model(x, outputs)
    model.compile("sgd", losses, metrics={"size": "mae", "kind": "accuracy"} if named else None)
    actual = evaluated(model, LOGITS, TARGETS)
    by_name = {output.pop("name"): output for output in actual["outputs"]}
    assert list(by_name) == ["size", "kind", "extra"]
    assert by_name["size"]["errors"]["mean_absolute"] == 1
    assert by_name["kind"] == {"classes": ["0", "1", "2"], "confusion": [[1, 0, 0], [0, 1, 0], [0, 1, 1]]}
    assert by_name["extra"] == {"why": "its loss is cosine_similarity, of an output [rows,3] and a target [rows,3]"}
    if named:
        assert (actual["metrics"]["size_mae"], actual["metrics"]["kind_accuracy"]) == (1, 0.75)


def test_of_very_many_outputs_the_first_are_judged(monkeypatch):
    monkeypatch.setattr(outputs, "MOST_JUDGED", 1)
    x = keras.Input((1,))
    model = keras.Model(x, {"a": layers.Identity()(x), "b": layers.Dense(1)(x)})
    model.compile("sgd", {"a": "mse", "b": "mse"})
    actual = evaluated(model, np.ones((4, 1)), {"a": np.ones((4, 1), np.float32), "b": np.ones((4, 1), np.float32)})["outputs"]
    assert [(output["name"], output.get("why")) for output in actual] == [("a", None), ("b", "only a model's first 1 outputs are judged")]
