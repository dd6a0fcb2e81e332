"""Exact counts of steps and the learning rate at each point of time."""

import math

import pytest

from control.common import configurations
from trainer.config.schedule import Counts, counts, learning_rate


def config(**dotted):
    return configurations.build(configurations.override({}, {key.replace("__", "."): value for key, value in dotted.items()}))


@pytest.mark.parametrize(
    ("workers", "files", "dotted", "expected"),
    [
        (2, 60000, {"train__epochs": 3}, {"train_images": 48000, "validation_images": 12000, "global_batch": 128, "total_steps": 1125}),
        (1, 101, {}, {"train_images": 81, "steps_per_epoch": 2}),
        (2, 101, {}, {"train_images": 81, "steps_per_epoch": 1}),
        (3, 1000, {}, {"train_images": 800, "steps_per_epoch": 5}),
        (5, 2001, {}, {"train_images": 1601, "steps_per_epoch": 6}),
        (1, 1000, {"train__global_batch": 100}, {"global_batch": 100, "steps_per_epoch": 8}),
        (5, 1000, {"train__global_batch": 100}, {"global_batch": 100, "steps_per_epoch": 8}),
        *((1, 1000, {"data__limit_train": limit}, {"train_images": left}) for limit, left in [(0.5, 400), (0.001, 1), (1.0, 800)]),
        *(
            (1, 1000, {"data__limit_train": limit}, {"train_images": left})
            for limit, left in [(1, 1), (300, 300), (5000, 800), (None, 800)]
        ),
        (1, 1000, {"data__limit_validation": 50}, {"train_images": 800, "validation_images": 50, "held_out": 200}),
        (1, 1000, {"data__limit_validation": 0.5}, {"train_images": 800, "validation_images": 100, "held_out": 200}),
        (1, 1000, {"data__limit_validation": 300}, {"validation_images": 200, "held_out": None}),
        (1, 10, {"data__validation_split": 0.01}, {"validation_images": 1}),
        (1, 10, {"data__validation_split": 0.99}, {"validation_images": 9}),
        (1, 7, {"data__validation_split": 0.2}, {"validation_images": 1}),
        (2, 60000, {"train__steps_per_epoch": 70, "train__epochs": 3}, {"steps_per_epoch": 70, "total_steps": 210, "epochs": 3}),
        *(
            (1, 60000, {"train__steps": steps, "train__steps_per_epoch": 70, "train__epochs": 3}, {"total_steps": steps, "epochs": epochs})
            for steps, epochs in [(1, 1), (70, 1), (71, 2), (1000, 15)]
        ),
    ],
)
def test_counts_follow_from_configuration_and_files(workers, files, dotted, expected):
    made = counts(config(train__batch_size=64, **dotted), workers, files)
    assert {name: getattr(made, name) for name in expected} == expected


@pytest.mark.parametrize(("step", "epoch"), [(0, 1), (69, 1), (70, 2), (209, 3)])
def test_epoch_of_a_step(step, epoch):
    assert counts(config(train__steps_per_epoch=70), 1, 60000).epoch_of(step) == epoch


def rate(workers, epoch, **dotted):
    return learning_rate(config(optimizer__learning_rate=1e-4, **dotted), epochs(20, workers), epoch)


def epochs(number, workers=1):
    return Counts(workers, 1000, 200, 10, 100, number, 100 * number)


@pytest.mark.parametrize(
    ("workers", "epoch", "scaling", "warmup", "expected"),
    [
        *((8, epoch, "linear", 5, rate) for epoch, rate in [(0, 1e-4), (1, 2.4e-4), (2.5, 4.5e-4), (5, 8e-4), (100, 8e-4)]),
        *((16, 0, scaling, 0, rate) for scaling, rate in [("none", 1e-4), ("sqrt", 4e-4), ("linear", 16e-4)]),
        *((1, 2, scaling, 5, 1e-4) for scaling in ("none", "sqrt", "linear")),
    ],
)
def test_rate_climbs_to_that_of_the_workers(workers, epoch, scaling, warmup, expected):
    assert rate(workers, epoch, schedule__scaling=scaling, schedule__warmup_epochs=warmup) == pytest.approx(expected, rel=1e-12)


STAGES = [[82, 0.1], [123, 0.01], [300, 0.002]]


@pytest.mark.parametrize("stages", [STAGES, list(reversed(STAGES))])
@pytest.mark.parametrize(
    ("epoch", "factor"), [(0, 1), (81.99, 1), (82, 0.1), (122.99, 0.1), (123, 0.01), (299.99, 0.01), (300, 0.002), (1000, 0.002)]
)
def test_decay_in_stages(epoch, factor, stages):
    assert rate(1, epoch, schedule__decay=stages) == pytest.approx(1e-4 * factor, rel=1e-12)


# What the courses say of their learning rates: configuration, workers, epoch, rate.
COURSES = [
    ("resnet_cifar", 1, 0, 0.1),
    ("resnet_cifar", 5, 81.99, 0.1),
    ("resnet_cifar", 5, 82, 0.01),
    ("resnet_cifar", 5, 123, 0.001),
    ("resnet_cifar", 5, 300, 0.0002),
    ("resnet_small", 8, 0, 1e-4),
    ("resnet_small", 8, 2.5, 4.5e-4),
    ("resnet_small", 8, 5, 8e-4),
    ("resnet_small", 8, 31, 8e-4),
    ("cnn", 8, 10, 1e-3),
    ("resnet50", 1, 10, 0.0125),
    ("resnet50", 8, 0, 0.0125),
    ("resnet50", 8, 5, 0.1),
    ("resnet50", 8, 30, 0.01),
    ("resnet50", 8, 60, 0.001),
    ("resnet50", 8, 80, 0.0001),
    ("fashion_cnn", 5, 11, 1e-3),
    ("fashion_cnn", 5, 12, 1e-4),
    ("fashion_cnn", 5, 19, 1e-5),
    ("lecture_cnn", 5, 2, 1e-3),
    ("task_cnn", 5, 29, 1e-2),
]


@pytest.mark.parametrize(("name", "workers", "epoch", "expected"), COURSES)
def test_rates_of_the_courses(name, workers, epoch, expected):
    made = configurations.build(configurations.load(configurations.find(name)))
    assert learning_rate(made, epochs(90, workers), epoch) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("shape", "final", "epoch", "expected"),
    [
        ("constant", 0.1, 20, 4e-4),
        ("linear", 0.0, 2, 4e-4),
        ("linear", 0.0, 11, 2e-4),
        ("linear", 0.5, 20, 2e-4),
        ("cosine", 0.0, 1, 2.5e-4),
        ("cosine", 0.0, 2, 4e-4),
        ("cosine", 0.0, 11, 2e-4),
        ("cosine", 0.0, 6.5, 2e-4 * (1 + math.cos(math.pi / 4))),
        ("cosine", 0.1, 20, 0.4e-4),
        ("cosine", 0.1, 30, 0.4e-4),
    ],
)
def test_rate_falls_from_warm_up_to_the_end(shape, final, epoch, expected):
    """The rate falls from the end of the warm up to the last step."""
    given = {"schedule__scaling": "linear", "schedule__warmup_epochs": 2.0, "schedule__shape": shape, "schedule__final": final}
    assert rate(4, epoch, **given) == pytest.approx(expected, rel=1e-12)


def test_warm_up_longer_than_run_never_falls():
    assert rate(4, 1, schedule__scaling="linear", schedule__warmup_epochs=30.0, schedule__shape="cosine") == pytest.approx(1.1e-4)


@pytest.mark.parametrize(
    ("name", "optimizer", "batch", "epochs"),
    [
        ("resnet_cifar", "sgd", 128, 160),
        ("resnet_small", "adam", 8 * 64, 32),
        ("cnn", "adam", 8 * 64, 24),
        ("fashion_cnn", "adam", 100, 20),
        ("resnet50", "sgd", 8 * 32, 90),
    ],
)
def test_optimizer_batch_and_epochs_of_the_courses(name, optimizer, batch, epochs):
    made = configurations.build(configurations.load(configurations.find(name)))
    assert (made.optimizer.name, made.train.epochs, counts(made, 8, 50_000).global_batch) == (optimizer, epochs, batch)
    if optimizer == "sgd":
        assert made.optimizer.momentum == 0.9


def test_images_that_a_dataset_holds_out_itself():
    made = counts(config(data__validation_split=0.5, train__batch_size=100), 1, 50_000, 10_000)
    assert (made.train_images, made.validation_images, made.steps_per_epoch) == (40_000, 10_000, 400)


def test_fewer_workers_keep_learning_rate_of_global_batch():
    scaled = config(schedule__scaling="linear", optimizer__learning_rate=0.1, train__global_batch=12)
    all_of_them, fewer = counts(scaled, 3, 100), counts(scaled, 2, 100, scaled_for=3)
    assert learning_rate(scaled, fewer, 0.0) == learning_rate(scaled, all_of_them, 0.0) == pytest.approx(0.3)
    assert (fewer.workers, fewer.total_steps) == (2, all_of_them.total_steps)
