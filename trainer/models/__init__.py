"""Models: Keras 3, images `[batch, height, width, channels]` 0..255 in, logits `[batch, classes]` out.

Keras (and with it TensorFlow) is imported only when a model is built, so that `control.common.model_options` checks names and options
without.
"""

from trainer.models import cnn, resnet  # noqa: F401 - models register themselves
from trainer.models.registry import MODELS, build, options

__all__ = ["MODELS", "build", "options"]
