"""A cell of the peers' benchmark that is `train.yml` itself."""

import json

import pytest

from benchmarks.peer_results import peers_train
from benchmarks.peer_results.peer_trials import SYSTEMS, TRAIN, Cell, Settings
from benchmarks.shared import random_images as images
from control.common import configurations
from control.runs.planning.plan_request import OperatorRequest
from tests.unit.samples import HISTORY
from trainer.config import schedule
from trainer.host.claims import RUN_NAME


def cell(workers):
    return Cell(1, "none", workers, "train")


def config_of(one, **settings):
    variables = peers_train.variables(one, Settings(**settings))
    loaded = configurations.load(configurations.find(variables["config"]))
    return configurations.build(configurations.override(loaded, OperatorRequest.of(variables).overrides))


@pytest.mark.parametrize(("workers", "steps", "per_epoch"), [(5, 40, 128), (5, 160, 160), (1, 160, 160)])
def test_a_warm_up_epoch_then_at_least_the_steps(workers, steps, per_epoch):
    config = config_of(cell(workers), steps=steps)
    counts = schedule.counts(config, workers, images.COUNTS["train"])
    assert (counts.epochs, counts.steps_per_epoch, counts.global_batch) == (2, per_epoch, 64 * workers)
    assert (counts.validation_images, config.train.steps_per_call) == (peers_train.HELD_OUT, 8)


@pytest.mark.parametrize("system", [system for system in SYSTEMS.values() if system.program == TRAIN])
def test_a_variant_is_more_settings(system):
    config = config_of(Cell(1, "none", 2, system.name))
    assert (config.telemetry.profile_every == 0) == (system.name == "train-unprofiled")


def test_the_data_set_has_images_of_the_model_s_size():
    assert sum(1 for _ in images.images("test")) == images.COUNTS["test"]
    image, label = next(images.images("train"))
    assert (image.shape, image.dtype, label) == ((32, 32, 3), "uint8", 0)


@pytest.mark.parametrize("peers", ["few", "p" * 64])
def test_its_run_has_a_valid_name_of_its_own(peers):
    assert RUN_NAME.fullmatch(peers_train.run_name(peers))
    assert peers_train.run_name(peers) != peers


@pytest.fixture
def run(tmp_path):
    rows = [(1, 400.0, 32.0), (2, 1000.0, 12.8), (3, 500.0, 25.6)]
    lines = [
        ",".join(str({"epoch": e, "images_per_s": rate, "seconds": s, "loss": 2.5 - e}.get(key, 0.1)) for key in HISTORY)
        for e, rate, s in rows
    ]
    (tmp_path / "history.csv").write_text("\n".join([",".join(HISTORY), *lines]) + "\n")
    digests = ["a" * 64, "a" * 64]
    summary = {"steps": 300, "epochs": 3, "weights_sha256_by_rank": digests, "reduction": {"name": "powersgd"}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "cluster.json").write_text('{"launched_at": 7.0}')
    return tmp_path


def test_its_row_counts_all_epochs_but_the_first(run):
    row = peers_train.row(cell(2), run)
    assert row.measured
    assert row.images_per_s == pytest.approx(2 * 12_800 / 38.4)
    assert (row.seconds_step, row.steps, row.loss) == (pytest.approx(38.4 / 200), 200, -0.5)
    assert (row.weights_equal, row.started_at, row.chosen) == (True, 7.0, "powersgd")
    assert (row.cpu_seconds_step, row.sent_bytes_step) == (None, None)
    summary, history = run / "summary.json", run / "history.csv"
    summary.write_text(summary.read_text().replace("a" * 64, "b" * 64, 1))
    assert not peers_train.row(cell(2), run).weights_equal
    history.write_text("\n".join(history.read_text().splitlines()[:2]) + "\n")
    assert peers_train.row(cell(2), run).reason.endswith("history.csv has no epoch after the first")
