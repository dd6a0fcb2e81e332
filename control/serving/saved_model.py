"""A snapshot as a SavedModel, which TensorFlow Serving and `serve.yml` load without the code that built it. Needs TensorFlow."""

import datetime
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from control.runs.predict.trained_model import Trained
from control.serving import onnx_file, protocol
from control.serving.signature import CSV, EXAMPLES, IMAGES, TENSORS, ExportedModel, VersionFolder, arguments, named
from trainer.common.errors import LockstepError
from trainer.common.files import sha256_file
from trainer.data.spec import STRING, Leaf
from trainer.rundir.layout import snapshot_path

PART = ".part-"
"""Begins the name of a version that is being written."""
LINE, EXAMPLE, ENCODED = (protocol.TEXTS[name].name for name in (CSV, EXAMPLES, IMAGES))
Answer = Callable[[Sequence[Any]], dict[str, Any]]
"""From an array per input to an array per output."""


def export(run: str, epoch: int, into: str) -> dict[str, Any]:
    """Write a snapshot as the next version of a model.

    Args:
        run: run directory on the control node.
        epoch: the snapshot.
        into: folder of the model's versions.

    Returns:
        `folder` of the version.

    Raises:
        LockstepError: the model can't be built, or its signatures can't be traced.
    """
    folder, source = Path(into), Path(run)
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{PART}*"):
        # Of a command that was killed.
        shutil.rmtree(left, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=PART, dir=folder))
    try:
        _write(source, epoch, sha256_file(snapshot_path(source, epoch)), part)
        part.chmod(0o750)
        _sync(part)
        version = VersionFolder(folder).next_number
        part.rename(folder / str(version))
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return {"folder": str(folder / str(version))}


def _sync(folder: Path) -> None:
    """Write a folder's files through to the disk."""
    for path in (*folder.rglob("*"), folder):
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def _write(run: Path, epoch: int, digest: str, folder: Path) -> None:
    trained = Trained.of(run)
    predictor, spec = trained.snapshot(epoch), trained.spec
    inputs, outputs = arguments(spec.inputs.leaves), named(predictor.outputs)

    def answer(values: Sequence[Any]) -> dict[str, Any]:
        return dict(zip((leaf.name for leaf in outputs), predictor.call(spec.inputs.pack(values)), strict=True))

    def tensors(*values: Any) -> dict[str, Any]:
        return answer(values)

    archive, left_out = keras.export.ExportArchive(), dict[str, str]()
    archive.track(predictor.model)
    specs = [tf.TensorSpec([None, *leaf.shape], leaf.dtype, name=leaf.name) for leaf in inputs]
    archive.add_endpoint(TENSORS, tensors, input_signature=specs)
    signatures = [TENSORS]
    for name, line, why, parse in _others(inputs, trained.image_size):
        if why:
            left_out[name] = why
            continue
        archive.add_endpoint(name, _parsed(parse, answer), input_signature=[tf.TensorSpec([None], tf.string, name=line)])
        signatures.append(name)
    archive.write_out(str(folder), verbose=False)
    if why := onnx_file.write_onnx(tensors, inputs, folder):
        left_out[onnx_file.NAME] = why
    ours = [output for output in outputs if output.shape == (len(trained.classes),)]
    exported = ExportedModel(
        run=run.name,
        epoch=epoch,
        snapshot_sha256=digest,
        created_at=datetime.datetime.now(tz=datetime.UTC).isoformat(timespec="seconds"),
        inputs=inputs,
        outputs=outputs,
        classes=trained.classes if len(ours) == 1 else (),
        image_size=trained.image_size,
        signatures=tuple(signatures),
        left_out=left_out,
    )
    exported.write(folder)


def _parsed(parse: Callable[[Any], list[Any]], answer: Answer) -> Callable[[Any], dict[str, Any]]:
    return lambda texts: answer(parse(texts))


def _others(inputs: Sequence[Leaf], size: tuple[int, ...] | None) -> list[tuple[str, str, str, Callable[[Any], list[Any]]]]:
    """The signatures that parse: name, input, why the model can't have it (else empty), and what makes arrays of it."""
    if size is not None:
        return [
            (IMAGES, ENCODED, "", lambda texts: [_decoded(texts, size)]),
            (EXAMPLES, EXAMPLE, "", lambda texts: [_decoded(tf.io.parse_example(texts, _IMAGE_FEATURE)[ENCODED], size)]),
        ]
    several = [leaf.name for leaf in inputs if leaf.shape]
    deep = [leaf.name for leaf in inputs if leaf.varies and len(leaf.shape) > 1]
    return [
        (
            CSV,
            LINE,
            f"a line has one value per input, and {several[0]} is an array" if several else "",
            lambda texts: _of_csv(texts, inputs),
        ),
        (
            EXAMPLES,
            EXAMPLE,
            f"{deep[0]} varies in one of several dimensions" if deep else "",
            lambda texts: _of_examples(texts, inputs),
        ),
    ]


_IMAGE_FEATURE = {ENCODED: tf.io.FixedLenFeature([], tf.string)}


def _decoded(texts: Any, size: tuple[int, ...]) -> Any:
    """`[n, height, width, channels]` uint8 of encoded images, fitted as `trainer.data.images` does but for rounding, EXIF and alpha."""

    def one(encoded: Any) -> Any:
        image = tf.io.decode_image(encoded, channels=size[2], expand_animations=False)
        image.set_shape([None, None, size[2]])
        rows, columns = size[0] - tf.shape(image)[0], size[1] - tf.shape(image)[1]
        small = (rows >= 0) & (columns >= 0) & (2 * rows < size[0]) & (2 * columns < size[1])
        fitted = tf.cond(small, lambda: _padded(image, rows, columns), lambda: _resized(image, size))
        return tf.ensure_shape(fitted, size)

    return tf.map_fn(one, texts, fn_output_signature=tf.TensorSpec(size, tf.uint8))


def _padded(image: Any, rows: Any, columns: Any) -> Any:
    return tf.pad(image, [[rows // 2, rows - rows // 2], [columns // 2, columns - columns // 2], [0, 0]])


def _resized(image: Any, size: tuple[int, ...]) -> Any:
    resized = tf.image.resize(image, size[:2], method="bilinear", antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)


def _of_csv(texts: Any, inputs: Sequence[Leaf]) -> list[Any]:
    """An array per input of lines with a value each, in order; an empty value is missing: NaN, an empty text, or 0."""
    defaults = [tf.constant([_missing(leaf)], _read_as(leaf)) for leaf in inputs]
    return [tf.cast(column, leaf.dtype) for column, leaf in zip(tf.io.decode_csv(texts, defaults), inputs, strict=True)]


def _of_examples(texts: Any, inputs: Sequence[Leaf]) -> list[Any]:
    """An array per input of serialized tf.Example, whose features have the inputs' names."""
    features = {leaf.name: _feature(leaf) for leaf in inputs}
    parsed = tf.io.parse_example(texts, features)
    arrays = []
    for leaf in inputs:
        value = parsed[leaf.name]
        dense = tf.sparse.to_dense(value, default_value="" if leaf.dtype == STRING else 0) if leaf.varies else value
        arrays.append(tf.cast(dense, leaf.dtype))
    return arrays


def _feature(leaf: Leaf) -> Any:
    kind = _read_as(leaf, wide=False)
    return tf.io.VarLenFeature(kind) if leaf.varies else tf.io.FixedLenFeature(leaf.shape, kind)


def _read_as(leaf: Leaf, wide: bool = True) -> Any:
    """The type in which a text or a feature has a value of an input."""
    if leaf.dtype == STRING:
        return tf.string
    if leaf.dtype.startswith("float"):
        return tf.float64 if wide and leaf.dtype == "float64" else tf.float32
    return tf.int64


def _missing(leaf: Leaf) -> Any:
    if leaf.dtype == STRING:
        return ""
    return float("nan") if leaf.dtype.startswith("float") else 0


def load(folder: Path) -> dict[str, Any]:
    """The signatures of a version, by name; LockstepError if it can't be loaded."""
    try:
        model = tf.saved_model.load(str(folder))
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise LockstepError(f"{folder}: {error}") from None
    return {name: model.signatures[name] for name in model.signatures}
