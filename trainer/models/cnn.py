"""Convolutional networks: the Pi cluster's (hpides/BDL, task 6), a deeper one, and those from two courses."""

from typing import TYPE_CHECKING

from trainer.common.errors import ConfigError
from trainer.models.registry import Size, model

if TYPE_CHECKING:
    import keras


@model()
def lecture_cnn(size: Size, classes: int) -> "keras.Model":
    """The lecture's MNIST model: 2,770,634 parameters at 28x28x1 and ten classes."""
    from keras import layers

    return _one_convolution("lecture_cnn", size, classes, layers.Reshape(size))


@model()
def task_cnn(size: Size, classes: int) -> "keras.Model":
    """The task's model: 3,688,714 parameters at 32x32x3 and ten classes."""
    return _one_convolution("task_cnn", size, classes)


def _one_convolution(name: str, size: Size, classes: int, *first: "keras.Layer") -> "keras.Model":
    import keras
    from keras import layers

    convolution = layers.Conv2D(32, 3, activation="relu")
    network = [keras.Input(size), layers.Rescaling(1 / 255), *first, convolution, layers.Flatten()]
    return keras.Sequential([*network, layers.Dense(128, activation="relu"), layers.Dense(classes)], name=name)


@model(dropout="Fraction of the dense layer's outputs that each step drops.")
def cnn(size: Size, classes: int, dropout: float = 0.1) -> "keras.Model":
    """Three convolutions with pooling and a dense layer (NERSC/dl4sci-scaling-tutorial): 156,074 parameters at 32x32x3 and ten classes."""
    import keras
    from keras import layers

    _check("cnn", dropout, size)
    network = [keras.Input(size), layers.Rescaling(1 / 255)]
    for filters in (16, 32, 64):
        network += [layers.Conv2D(filters, 3, padding="same", activation="relu"), layers.MaxPooling2D()]
    network += [layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dropout(dropout), layers.Dense(classes)]
    return keras.Sequential(network, name="cnn")


@model(dropout="Fraction of the first dense layer's outputs that each step drops.")
def fashion_cnn(size: Size, classes: int, dropout: float = 0.25) -> "keras.Model":
    """FashionCNN (SkafteNicki/dtu_mlops): 1,475,338 trainable parameters at 28x28x1 and ten classes; no activation between dense layers."""
    import keras
    from keras import layers

    _check("fashion_cnn", dropout, size)
    network = [keras.Input(size), layers.Rescaling(1 / 255)]
    for filters, padding in ((32, "same"), (64, "valid")):
        normalise = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)
        network += [layers.Conv2D(filters, 3, padding=padding), normalise, layers.ReLU(), layers.MaxPooling2D()]
    network += [layers.Flatten(), layers.Dense(600), layers.Dropout(dropout), layers.Dense(120), layers.Dense(classes)]
    return keras.Sequential(network, name="fashion_cnn")


def _check(name: str, dropout: float, size: Size) -> None:
    if not 0 <= dropout < 1:
        raise ConfigError(f"model.dropout: {dropout} is not allowed; it must be from 0 to below 1")
    if min(size[:2]) < 8:
        raise ConfigError(f"data.image_size: {size[0]}x{size[1]} is not allowed; {name} needs sides of at least 8")


@model(
    filters="Filters of the first stage; each later stage has twice as many.",
    stages="Stages of two convolutions and a pooling that halves height and width.",
)
def deep_cnn(size: Size, classes: int, filters: int = 32, stages: int = 3) -> "keras.Model":
    """A deeper variant: stages of conv3-conv3-pool (Simonyan, Zisserman 2015, arXiv:1409.1556)."""
    import keras
    from keras import layers

    if filters < 1:
        raise ConfigError(f"model.filters: {filters} is not allowed; it must be at least 1")
    if stages < 1 or min(size[:2]) >> stages < 1:
        raise ConfigError(
            f"model.stages: {stages} is not allowed; each stage halves the image, "
            f"and {size[0]}x{size[1]} can be halved {min(size[:2]).bit_length() - 1} times"
        )
    network = [keras.Input(size), layers.Rescaling(1 / 127.5, offset=-1.0)]
    for stage in range(stages):
        shape = {"padding": "same", "activation": "relu", "kernel_initializer": "he_normal"}
        network += [*(layers.Conv2D(filters * 2**stage, 3, **shape) for _ in range(2)), layers.MaxPooling2D()]
    network += [layers.Flatten(), layers.Dense(128, activation="relu", kernel_initializer="he_normal"), layers.Dense(classes)]
    return keras.Sequential(network, name="deep_cnn")
