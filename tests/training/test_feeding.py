"""What a step is fed: class weights, mixup, a user's `augment`, buckets; exact on any number of workers."""

from pathlib import Path

import pytest

from tests import preloaded
from tests.project import EXHAUSTIVE
from tests.training.trainings import Trainings

FILE = Path(__file__).with_name("sequences.py")
SEQUENCES = "set=train.batch_sizes=[5,3],train.steps_per_call=3,telemetry.profile_every=4,data.bucket=3,train.class_weight=balanced"
PICTURES = (
    "set=train.global_batch=20,train.steps_per_epoch=null,data.image_size=[16,16,3],train.steps_per_call=4,train.validate_every=2,"
    "augment.mixup=0.4,augment.flip=true,augment.brightness=0.3,augment.saturation=0.3,train.label_smoothing=0.1,"
    "train.class_weight={cat: 2.0},optimizer.learning_rate=0.0005"
)
"""144 pictures for training: 7.2 steps of 20 per epoch."""

BY_KERAS = """
from trainer.config import loading
import importlib.util, json, sys
import keras
import numpy as np
from trainer.config import schema as configs
from trainer.data.open_examples import open_examples
from trainer.data.transform import Feeding
from trainer.data.manifest import Published
from trainer.data.partition import EpochPlan
from trainer.data.feeder import Feeder, calls
from pathlib import Path
file, packs, caches, run = map(Path, sys.argv[1:5])
spec = importlib.util.spec_from_file_location("sequences", file)
sequences = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sequences)
config, cluster = loading.build(loading.load(run / "config.yml")), json.loads((run / "cluster.json").read_text())
sha256, counts = cluster["dataset"]["manifest"], cluster["counts"]
manifest, splits = open_examples(Published(packs / sha256[:16], sha256), caches, config.data, lambda *_: None)
train, chosen = splits["train"], manifest.order[counts["validation_images"]:][: counts["train_images"]]
labels = train.gather(chosen)[1]
weights = {number: len(labels) / (3 * np.count_nonzero(labels == number)) for number in range(3)}
feeding = Feeding(config, manifest.classes, train.spec)
keras.utils.set_random_seed(1)
model, left = sequences.build(), counts["total_steps"]
for epoch in (1, 2):
    sizes = counts["train_images"], counts["global_batch"], counts["steps_per_epoch"]
    plan = EpochPlan(*sizes, 1, epoch, feeding.lengths(train, chosen), config.data.bucket)
    for _, batch in Feeder(train, chosen, [1], 0, feeding).epoch(plan, calls(0, min(left, counts["steps_per_epoch"]), 1, False)):
        x, y, _ = batch.at(0).data
        model.train_on_batch(x, y, class_weight=weights)
        left -= 1
trained = model.get_weights()
model.load_weights(run / "checkpoints" / "epoch-0002.keras")
apart = [float(np.abs(a - b).max() / np.abs(a).max()) for a, b in zip(trained, model.get_weights(), strict=True)]
print(json.dumps({"apart": max(apart), "left": left, "classes": sorted(weights.values())}))
"""


def sequences(trainings: Trainings, name: str, *more: str) -> str:
    return trainings.train(f"run={name}", f"model={FILE}:build", f"dataset={FILE}:data", *more)


@pytest.fixture(scope="module")
def parts(trainings):
    """Seven steps, then 13 more, 12 of them an epoch, on two workers with uneven parts."""
    return [sequences(trainings, "parts", f"{SEQUENCES},train.steps={steps}") for steps in (7, 20)]


def test_sequences_are_fed_as_keras_would(trainings, parts, tmp_path):
    """Augmented, padded and weighed as the whole batch, and drawn in the second launch as if there had been one only."""
    given = (FILE, trainings.root / "packs", trainings.root / "fitted", trainings.run("parts"))
    fed = preloaded.answer(("-c", BY_KERAS, *map(str, given)), tmp_path, preloaded.ONE_THREAD)
    assert fed["left"] == 0
    assert fed["classes"][-1] > 1.3 * fed["classes"][0], "the classes are uneven"
    assert fed["apart"] < 1e-4
    assert trainings.summary("parts")["restarts"] == 1


@EXHAUSTIVE
def test_sequences_of_a_continued_run_are_equal(trainings, parts):
    """To the bit, those of a run that was not stopped."""
    sequences(trainings, "whole", f"{SEQUENCES},train.steps=20")
    assert trainings.summary("parts")["weights_sha256"] == trainings.summary("whole")["weights_sha256"]


@EXHAUSTIVE
def test_weights_find_layers_by_name(trainings, parts):
    """In another architecture."""
    given = f"weights={trainings.run('parts')}/checkpoints/epoch-0002.keras"
    log = sequences(trainings, "named", given, "set=model.hidden=true,train.weights_by_name=true,train.steps=2")
    assert "weights=epoch-0002.keras: 1 layers keep their own initial weights: hidden" in log


def pictured(trainings: Trainings, name: str, pictures: Path, steps: int, workers: int = 2):
    settings = f"{PICTURES},train.steps={steps}"
    return trainings.train(f"run={name}", f"dataset={pictures}", "config=lecture_cnn", settings, codes=(0,) * workers)


@EXHAUSTIVE
def test_mixed_pictures_are_equal_when_continued(trainings, pictures):
    """And on another number of workers."""
    pictured(trainings, "mixed", pictures, 20)
    pictured(trainings, "mixed-parts", pictures, 11)
    pictured(trainings, "mixed-parts", pictures, 20, workers=1)
    whole, parts = (trainings.history(name) for name in ("mixed", "mixed-parts"))
    for row, other in zip(whole, parts, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-3)
    assert ["val_loss" in row for row in whole] == [False, True, True], "each second epoch, and the last"
    assert trainings.summary("mixed")["best"]["epoch"] in (2, 3)
