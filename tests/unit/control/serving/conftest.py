"""Runs with a snapshot, as training leaves them on the control node."""

import io
import json
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
import uvicorn
from PIL import Image

from control.common import configurations, user_files
from control.serving.server import Prompt
from tests.project import await_until
from trainer.common.files import write_text
from trainer.data.spec import Leaf, Spec, of_images
from trainer.evaluation import predict
from trainer.rundir.layout import snapshot_path

ROW = Spec([{"miles": 0, "company": 1}, 2], (Leaf("x.miles", "float32", ()), Leaf("x.company", "string", ()), Leaf("y", "int32", ())))
PAIR = Spec([[0, 1], 2], (Leaf("x[0]", "float32", (2,)), Leaf("x[1]", "int64", (None,)), Leaf("y", "float32", ())))
SIZE = (8, 8, 3)
MODELS = """
import keras
from keras import layers

def rows():
    miles, company = keras.Input((), name="miles"), keras.Input((), dtype="string", name="company")
    word = layers.StringLookup(vocabulary=["cab", "taxi"], output_mode="one_hot")(company)
    h = layers.Concatenate()([layers.Reshape((1,))(miles), word])
    model = keras.Model({"miles": miles, "company": company}, layers.Dense(1, activation="sigmoid", name="tip")(h))
    model.compile("sgd", "binary_crossentropy")
    return model

def pair():
    a, words = keras.Input((2,), name="a"), keras.Input((None,), dtype="int64", name="words")
    h = layers.Concatenate()([a, layers.GlobalAveragePooling1D()(layers.Embedding(10, 3)(words))])
    model = keras.Model([a, words], layers.Dense(1, name="out")(h))
    model.compile("sgd", "mse")
    return model
"""


def features(**values):
    """A serialized tf.Example."""
    import tensorflow as tf

    kinds = {float: ("float_list", tf.train.FloatList), int: ("int64_list", tf.train.Int64List), bytes: ("bytes_list", tf.train.BytesList)}
    made = {}
    for name, given in values.items():
        kind, listed = kinds[type(given[0])]
        made[name] = tf.train.Feature(**{kind: listed(value=given)})
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


def png(image):
    """The bytes of a picture's file."""
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()


def make_run(folder: Path, config: dict, spec: Spec | None, classes: list[str]) -> Path:
    """A run directory with the snapshot of epoch 3, whose weights are random."""
    built = configurations.build(config)
    (folder / "checkpoints").mkdir(parents=True)
    write_text(folder / "config.yml", configurations.dump(built))
    dataset = {"classes": classes, **({"spec": spec.to_json()} if spec else {})}
    (folder / "cluster.json").write_text(json.dumps({"run": folder.name, "dataset": dataset}))
    model = predict.build(built, len(classes), spec or of_images(SIZE)).model
    random = np.random.default_rng(1)
    model.set_weights([random.normal(size=weight.shape).astype(weight.dtype) for weight in model.get_weights()])
    model.save(snapshot_path(folder, 3))
    return folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Runs by name."""
    root = tmp_path_factory.mktemp("runs")
    (root / "mine.py").write_text(MODELS)
    pictures = {"model": {"name": "lecture_cnn"}, "data": {"image_size": list(SIZE)}}
    return {
        "pictures": make_run(root / "pictures", pictures, None, ["cat", "dog", "emu"]),
        **{
            name: make_run(root / name, {"model": user_files.model_section(f"{root}/mine.py:{name}")}, spec, [])
            for name, spec in (("rows", ROW), ("pair", PAIR))
        },
    }


@pytest.fixture(scope="session")
def exports(runs, tmp_path_factory):
    """Folders of the exported runs, by name; each has version 1."""
    from control.serving import saved_model

    root = tmp_path_factory.mktemp("exports")
    for name, run in runs.items():
        saved_model.export(str(run), 3, str(root / name))
    return {name: root / name for name in runs}


class Running:
    """A server on a free port, in a thread."""

    def __init__(self, application, **settings):
        """Start it."""
        settings = uvicorn.Config(application, http=Prompt, log_level="critical", timeout_graceful_shutdown=1, **settings)
        self.server, self.socket = uvicorn.Server(settings), socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})
        self.thread.start()
        await_until(lambda: self.server.started, 20, "the server")

    def stop(self):
        """End it."""
        self.server.should_exit = True
        self.thread.join(30)
        self.socket.close()
        assert not self.thread.is_alive()
