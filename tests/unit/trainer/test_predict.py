"""What a model predicts of new examples, by name; and what an evaluation says beside the metrics."""

import keras
import numpy as np
import pytest
from keras import layers

from control.datasets.new_examples import Parts, write_jobs
from trainer import config as configs
from trainer import evaluate, judging, predict
from trainer.data.manifest import Manifest, Records
from trainer.data.spec import Leaf, Spec, of_images
from trainer.errors import LockstepError
from trainer.files import write_text
from trainer.metrics import Metrics
from trainer.models import own

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
    return lambda name: configs.build({"model": own.section(f"{tmp_path}/mine.py:{name}")})


@pytest.mark.parametrize(
    ("model", "outputs"),
    [
        ("keys", [Leaf("low", "float32", (1,)), Leaf("high", "float32", (1, 2))]),
        ("several", [Leaf("one", "float32", (1,)), Leaf("two", "float32", (2,))]),
        ("kinds", [Leaf("kind", "float32", (4,))]),
    ],
)
def test_outputs_are_named_as_in_the_model(config, model, outputs):
    made = predict.build(config(model), 0, ROWS)
    assert sorted(map(str, made.outputs)) == sorted(map(str, outputs))
    assert made.goal == (judging.Classes(4) if model == "kinds" else None)


def test_an_output_without_examples_is_refused(config):
    with pytest.raises(LockstepError, match=r"has the shape \(\); its first dimension must be that of the examples"):
        predict.build(config("scalar"), 0, ROWS)


def test_a_classifier_of_images_gives_probabilities():
    made = predict.build(configs.build({"model": {"name": "lecture_cnn"}, "data": {"image_size": [28, 28, 1]}}), 3, of_images((28, 28, 1)))
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
    write_jobs(parts, parts.close(), ROWS, 0)
    folder = tmp_path / "predict"
    folder.mkdir()
    (tmp_path / "parts/0").rename(folder / predict.DATA)
    write_text(folder / predict.CONFIG, configs.dump(made))
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
        self.spec = Spec([0, 1], (Leaf("x", "float32", x.shape[1:]), Leaf("y", y.dtype.name, y.shape[1:])))
        self.data = (x, y)

    def __len__(self):
        return len(self.data[0])


def measured(loss, outputs, y, classes=()):
    """The evaluation of a model whose outputs are its inputs."""
    model = keras.Sequential([keras.Input(outputs.shape[1:]), layers.Identity()])
    model.compile("sgd", loss)
    examples, empty = Rows(outputs.astype(np.float32), y), Records([], [], [])
    manifest = Manifest("", list(classes), None, [], {}, empty, empty, 0, [])
    half = len(y) // 2
    batches = (tuple(part[rows] for part in examples.data) for rows in (slice(None, half), slice(half, None)))
    return evaluate._measured(model, manifest, examples, batches)


def test_a_compiled_classifier_has_a_confusion_matrix():
    logits = np.array([[3, 0, 0], [0, 3, 0], [0, 3, 0], [0, 0, 3]])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found = measured(loss, logits, np.array([0, 1, 2, 2]), ["cat", "dog", "emu"])
    assert found["confusion"] == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
    assert found["classes"] == ["cat", "dog", "emu"]
    one_hot = measured("categorical_crossentropy", np.eye(3)[[0, 1, 1, 2]], np.eye(3, dtype=np.float32)[[0, 1, 2, 2]])
    assert (one_hot["confusion"], one_hot["classes"]) == (found["confusion"], ["0", "1", "2"])


@pytest.mark.parametrize(("loss", "outputs"), [("binary_crossentropy", [0.1, 0.4, 0.9, 0.6]), (None, [-2, -0.5, 2, 0.3])])
def test_a_single_output_is_judged_by_its_threshold(loss, outputs):
    loss = loss or keras.losses.BinaryFocalCrossentropy(from_logits=True)
    found = measured(loss, np.array(outputs)[:, None], np.array([0, 1, 1, 1], np.float32)[:, None], ["no", "yes"])
    assert found["confusion"] == [[1, 0], [1, 2]]


@pytest.mark.parametrize("loss", ["mse", "huber", keras.losses.LogCosh()])
def test_a_regression_has_errors(loss):
    found = measured(loss, np.array([[1.0], [2], [3], [4]]), np.array([1, 1, 1, 1], np.float32)[:, None])
    assert (found["errors"]["mean"], found["errors"]["largest"], found["errors"]["values"]) == (1.5, 3, 4)


def test_any_other_loss_has_metrics_only():
    assert list(measured("cosine_similarity", np.ones((4, 3)), np.ones((4, 3), np.float32))) == ["metrics"]
    assert list(measured(lambda y, p: keras.ops.mean((y - p) ** 2, axis=-1), np.ones((4, 1)), np.ones((4, 1), np.float32))) == ["metrics"]
