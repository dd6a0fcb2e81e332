"""A signature as an ONNX file, where tf2onnx is installed and ONNX has the model's operations."""

import importlib.util
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.common.safe_text import printable
from trainer.data.spec import STRING, Leaf

NAME, FILE = "onnx", "model.onnx"
OPSET = 17
"""Operator set of ONNX 1.12 (2022), which every runtime in use reads."""
INSTALL = "not installed: .venv/bin/python -m pip install tf2onnx onnx; then export again"
LONGEST = 200
"""Characters of another library's reason."""


def is_installed() -> bool:
    """Return whether ONNX files can be written."""
    return all(importlib.util.find_spec(name) for name in ("onnx", "tf2onnx"))


def write_onnx(signature: Any, inputs: Sequence[Leaf], folder: Path) -> str:
    """Write a traced function; empty, or why there is no such file."""
    texts = [leaf.name for leaf in inputs if leaf.dtype == STRING]
    if texts:
        return f"{texts[0]} is a text, and ONNX has no tables of texts"
    if not is_installed():
        return INSTALL
    import onnx
    import tensorflow as tf
    import tf2onnx

    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)
    specs = [tf.TensorSpec([None, *leaf.shape], leaf.dtype, name=leaf.name) for leaf in inputs]
    function = tf.function(signature, input_signature=specs, autograph=False)
    path = folder / FILE
    try:
        tf2onnx.convert.from_function(function, input_signature=specs, opset=OPSET, output_path=str(path))
        # An operation that ONNX does not have stays in the graph under TensorFlow's name, which only the checker says.
        onnx.checker.check_model(str(path))
    except Exception as error:
        path.unlink(missing_ok=True)
        return f"{type(error).__name__}: {printable(str(error).strip().partition(chr(10))[0], LONGEST)}"
    return ""
