"""Residual networks (He et al. 2015, arXiv:1512.03385) as the original courses build them."""

from typing import TYPE_CHECKING, Any

from trainer.common.errors import ConfigError
from trainer.models.registry import Size, model

if TYPE_CHECKING:
    import keras


@model(
    layers="Number of convolutions plus the dense layer: 8, 14, 20, ... 44, ... 110.",
    weight_decay="Half of this times the sum of all squared weights is added to the loss.",
)
def resnet_cifar(size: Size, classes: int, layers: int = 44, weight_decay: float = 2e-4) -> "keras.Model":
    """ResNet v1 for CIFAR-10 with option-A shortcuts (tensorflow/models, cifar10_estimator).

    At 32x32x3 with 44 layers: 658,586 trainable parameters for ten logits; upstream has an eleventh, and 658,651.
    """
    import keras
    from keras import regularizers

    if layers < 8 or (layers - 2) % 6:
        near = max(8, 6 * round((layers - 2) / 6) + 2)
        raise ConfigError(f"model.layers: {layers} is not allowed; it must be 6n+2, from 8: 8, 14, 20, ... 44 (the nearest: {near})")
    if weight_decay < 0:
        raise ConfigError(f"model.weight_decay: {weight_decay} is not allowed; it must be at least 0")
    decay = regularizers.L2(weight_decay / 2) if weight_decay else None

    def convolution(x: Any, filters: int, strides: int = 1) -> Any:
        # Padded explicitly when strided: TensorFlow's `same` would pad one side only.
        x = keras.layers.ZeroPadding2D(1)(x) if strides > 1 else x
        padding = "valid" if strides > 1 else "same"
        x = keras.layers.Conv2D(filters, 3, strides, padding, use_bias=False, kernel_initializer="he_normal", kernel_regularizer=decay)(x)
        return keras.layers.BatchNormalization(momentum=0.997, epsilon=1e-5, beta_regularizer=decay, gamma_regularizer=decay)(x)

    def block(x: Any, filters: int, strides: int) -> Any:
        shortcut = x
        if strides > 1:
            shortcut = keras.layers.AveragePooling2D(strides)(shortcut)
        if missing := filters - x.shape[-1]:
            shortcut = keras.ops.pad(shortcut, ((0, 0), (0, 0), (0, 0), (missing // 2, missing - missing // 2)))
        x = keras.layers.ReLU()(convolution(x, filters, strides))
        return keras.layers.ReLU()(keras.layers.Add()([convolution(x, filters), shortcut]))

    if min(size[:2]) < 4 or any(side % 4 for side in size[:2]):
        raise ConfigError(
            f"data.image_size: {size[0]}x{size[1]} is not allowed; resnet_cifar halves the image twice, so sides are multiples of 4"
        )
    inputs = keras.Input(size)
    x = keras.layers.Rescaling(1 / 128, offset=-1.0)(inputs)
    x = keras.layers.ReLU()(convolution(x, 16))
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        for number in range((layers - 2) // 6):
            x = block(x, filters, strides if number == 0 else 1)
    x = keras.layers.GlobalAveragePooling2D()(x)
    outputs = keras.layers.Dense(classes, kernel_regularizer=decay, bias_regularizer=decay)(x)
    return keras.Model(inputs, outputs, name="resnet_cifar")


@model(l2="This times the sum of all squared kernel weights is added to the loss.")
def resnet_small(size: Size, classes: int, l2: float = 5e-5) -> "keras.Model":
    """A bottleneck network without the fourfold expansion (NERSC/dl4sci-scaling-tutorial): 26 layers, not counting shortcuts.

    At 32x32x3 and ten classes: 7,704,394 parameters, 7,690,826 of them trainable.
    """
    import keras
    from keras import layers, regularizers

    decay = regularizers.L2(l2) if l2 else None

    def convolution(x: Any, filters: int, kernel: int, strides: int = 1) -> Any:
        x = layers.Conv2D(filters, kernel, strides, "same", kernel_initializer="he_normal", kernel_regularizer=decay)(x)
        return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)

    def block(x: Any, filters: int, strides: int, projected: bool) -> Any:
        shortcut = convolution(x, filters, 1, strides) if projected else x
        x = layers.ReLU()(convolution(x, filters, 1, strides))
        x = layers.ReLU()(convolution(x, filters, 3))
        return layers.ReLU()(layers.Add()([convolution(x, filters, 1), shortcut]))

    inputs = keras.Input(size)
    x = layers.ReLU()(convolution(layers.Rescaling(1 / 255)(inputs), 64, 3))
    for filters, strides in ((64, 1), (128, 2), (256, 2), (512, 2)):
        x = block(block(x, filters, strides, True), filters, 1, False)
    x = layers.GlobalAveragePooling2D()(x)
    outputs = layers.Dense(classes, kernel_initializer="he_normal", kernel_regularizer=decay)(x)
    return keras.Model(inputs, outputs, name="resnet_small")


@model()
def resnet50(size: Size, classes: int) -> "keras.Model":
    """ResNet-50 as in Keras, with new weights; 25,636,712 parameters for ImageNet's 1,000 classes."""
    import keras
    from keras import layers

    if min(size[:2]) < 32 or size[-1] != 3:
        raise ConfigError(
            f"data.image_size: {list(size)} is not allowed; resnet50 takes colour images from 32x32 ([224, 224, 3] as a rule)"
        )
    network = keras.applications.ResNet50(weights=None, include_top=False, input_shape=size, pooling="avg")
    inputs = keras.Input(size)
    x = network(layers.Rescaling(1 / 127.5, offset=-1.0)(inputs))
    return keras.Model(inputs, layers.Dense(classes)(x), name="resnet50")
