"""An exported model answers as its snapshot does, in every signature."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from control.common import configurations
from control.serving import onnx_file, saved_model
from control.serving.signature import CSV, EXAMPLES, IMAGES, TENSORS, ExportedModel, VersionFolder, arguments
from tests.unit.control.serving.conftest import PAIR, ROW, SIZE, features, png
from trainer.common.errors import LockstepError
from trainer.common.files import sha256_file
from trainer.data.spec import Leaf, of_images
from trainer.evaluation import predict
from trainer.rundir.layout import snapshot_path


def snapshot(run, spec, classes):
    """The predictor of a run's snapshot."""
    made = predict.build(configurations.build(configurations.load(run / "config.yml")), classes, spec)
    made.model.load_weights(snapshot_path(run, 3))
    return made


def test_rows_as_arrays_lines_and_examples(runs, exports):
    loaded = saved_model.load(exports["rows"] / "1")
    exported = ExportedModel.read(exports["rows"] / "1")
    assert [str(leaf) for leaf in exported.inputs] == ["miles float32", "company string"]
    assert (exported.signatures, exported.classes, exported.image_size) == ((TENSORS, CSV, EXAMPLES), (), None)
    miles, company = np.array([1.5, -2.0], np.float32), np.array([b"taxi", b"bus"], object)
    (expected,) = snapshot(runs["rows"], ROW, 0).call(({"miles": miles, "company": company},))
    answers = [
        loaded[TENSORS](miles=tf.constant(miles), company=tf.constant(company)),
        loaded[CSV](line=tf.constant(["1.5,taxi", '-2,"bus"'])),
        loaded[EXAMPLES](example=tf.constant([features(miles=[1.5], company=[b"taxi"]), features(miles=[-2.0], company=[b"bus"])])),
    ]
    for answer in answers:
        assert list(answer) == [exported.outputs[0].name]
        np.testing.assert_array_equal(answer[exported.outputs[0].name], expected)


def test_arrays_are_padded_in_examples_not_lines(runs, exports):
    exported, loaded = ExportedModel.read(exports["pair"] / "1"), saved_model.load(exports["pair"] / "1")
    assert [str(leaf) for leaf in exported.inputs] == ["x_0 float32 [2]", "x_1 int64 [?]"]
    assert exported.left_out[CSV] == "a line has one value per input, and x_0 is an array"
    a, words = np.array([[1, 2], [3, 4]], np.float32), np.array([[5, 6], [7, 0]])
    (expected,) = snapshot(runs["pair"], PAIR, 0).call(([a, words],))
    made = [features(x_0=[1.0, 2.0], x_1=[5, 6]), features(x_0=[3.0, 4.0], x_1=[7])]
    (answer,) = loaded[EXAMPLES](example=tf.constant(made)).values()
    np.testing.assert_array_equal(answer, expected)


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (["class", "self", "None"], ["class_", "self_", "None_"]),
        (["_id", "(cm) size", "größe", "日本"], ["x_id", "x_cm_size", "gr_e", "x_"]),
        (["Age", "age", "1st", "a-b", "a.b", "a_b"], ["Age", "age_2", "1st", "a-b", "a_b_2", "a_b_3"]),
    ],
)
def test_any_column_is_an_argument(columns, names, tmp_path):
    inputs = arguments([Leaf(f"x.{name}", "float32", ()) for name in columns])
    assert [leaf.name for leaf in inputs] == names
    archive, model = keras.export.ExportArchive(), keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    archive.track(model)
    specs = [tf.TensorSpec([None], "float32", name=leaf.name) for leaf in inputs]
    archive.add_endpoint("f", lambda *values: model(values[-1][:, None]), input_signature=specs)
    archive.write_out(tmp_path, verbose=False)
    values = {name: tf.constant([float(number)]) for number, name in enumerate(names)}
    (answer,) = tf.saved_model.load(tmp_path).signatures["f"](**values).values()
    np.testing.assert_allclose(answer, model(np.array([[len(names) - 1.0]])), rtol=1e-6)


def test_images_as_arrays_and_encoded(runs, exports):
    exported, loaded = ExportedModel.read(exports["pictures"] / "1"), saved_model.load(exports["pictures"] / "1")
    assert (exported.classes, exported.image_size) == (("cat", "dog", "emu"), SIZE)
    image = np.random.default_rng(0).integers(0, 255, SIZE, dtype=np.uint8)
    (expected,) = snapshot(runs["pictures"], of_images(SIZE), 3).call((image[None],))
    small = np.zeros((6, 6, 3), np.uint8)
    (of_small,) = snapshot(runs["pictures"], of_images(SIZE), 3).call((np.pad(small + 9, ((1, 1), (1, 1), (0, 0)))[None],))
    for signature, texts in (
        (IMAGES, [png(image), png(small + 9)]),
        (EXAMPLES, [features(image_bytes=[png(one)]) for one in (image, small + 9)]),
    ):
        (argument,) = loaded[signature].structured_input_signature[1]
        (answer,) = loaded[signature](**{argument: tf.constant(texts)}).values()
        np.testing.assert_allclose(answer, np.concatenate([expected, of_small]), rtol=1e-5)
    large = np.repeat(np.repeat(image, 4, 0), 4, 1)
    (answer,) = loaded[IMAGES](image_bytes=tf.constant([png(large)])).values()
    assert answer.shape == (1, 3)


def test_versions_count_up_and_leftovers_go(runs, tmp_path):
    """Versions count up and what a killed command left goes."""
    folder = tmp_path / "rows"
    versions = VersionFolder(folder)
    digest = sha256_file(snapshot_path(runs["rows"], 3))
    assert versions.newest_holds("rows", 3, digest) is None
    (folder / ".part-1").mkdir(parents=True)
    (folder / "7").mkdir()
    assert versions.numbers == [], "neither what was left half written nor another's folder"
    assert saved_model.export(str(runs["rows"]), 3, str(folder)) == {"folder": str(folder / "8")}
    assert sorted(path.name for path in folder.iterdir()) == ["7", "8"]
    assert versions.newest_holds("rows", 3, digest).epoch == 3
    assert versions.newest_holds("rows", 3, "another") is versions.newest_holds("rows", 2, digest) is None
    (folder / "8" / "lockstep.json").write_text("{")
    assert versions.newest_holds("rows", 3, digest) is None, "it is exported again"


def test_a_folder_that_holds_no_model_is_refused(tmp_path):
    (tmp_path / "lockstep.json").write_text('{"run": "one"}')
    with pytest.raises(LockstepError, match=r"lockstep.json is missing, or was not written by export.yml"):
        ExportedModel.read(tmp_path)
    with pytest.raises(LockstepError):
        saved_model.load(tmp_path)


def test_onnx_says_why_there_is_none(exports, monkeypatch):
    assert ExportedModel.read(exports["rows"] / "1").left_out["onnx"] == "company is a text, and ONNX has no tables of texts"
    monkeypatch.setattr(onnx_file, "is_installed", lambda: False)
    assert onnx_file.write_onnx(None, (), exports["rows"]) == onnx_file.INSTALL


def test_onnx_answers_as_the_snapshot_does(runs, tmp_path):
    pytest.importorskip("tf2onnx")
    runtime = pytest.importorskip("onnxruntime")
    saved_model.export(str(runs["pictures"]), 3, str(tmp_path))
    images = np.random.default_rng(0).integers(0, 255, (4, *SIZE), dtype=np.uint8)
    (expected,) = snapshot(runs["pictures"], of_images(SIZE), 3).call((images,))
    (answer,) = runtime.InferenceSession(tmp_path / "1" / onnx_file.FILE).run(["probability"], {"image": images})
    np.testing.assert_allclose(answer, expected, atol=1e-6)


def test_model_without_onnx_operations_leaves_no_file(tmp_path):
    pytest.importorskip("tf2onnx")
    why = onnx_file.write_onnx(lambda x: {"y": tf.raw_ops.Betainc(a=x, b=x, x=x)}, [Leaf("x", "float32", ())], tmp_path)
    assert why
    assert not list(tmp_path.iterdir())
