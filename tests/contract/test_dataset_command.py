"""`playbooks/dataset.yml`: an archive becomes TFRecords once, unless it is another file."""

import io
import pickle
import re
import tarfile

import numpy as np
import pytest

BATCH = 40


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """An archive of CIFAR-10's layout, of 40 images a batch: each is of its label's brightness."""
    path = tmp_path_factory.mktemp("archive") / "cifar-10-python.tar.gz"
    labels = np.tile(np.arange(10), BATCH // 10)
    images = np.repeat((labels * 25).astype(np.uint8)[:, None], 3072, axis=1)
    data = pickle.dumps({b"data": images, b"labels": labels.tolist()}, protocol=2)
    with tarfile.open(path, "w:gz", compresslevel=1) as stream:
        for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(data)
            stream.addfile(info, io.BytesIO(data))
    return path


def test_cifar10_is_converted_once(commands, archive):
    commands.constants["control.datasets.sources.cifar10:BATCH"] = BATCH
    given = ("source=cifar10", f"path={archive}")
    assert "it is truncated or another file" in commands.refusal("playbooks/dataset", *given)
    checked = commands.ended("playbooks/dataset", *given, "digest=any", "--check")
    assert "would be written" in checked.stdout
    assert not (commands.root / "datasets").exists()
    made = commands.ended("playbooks/dataset", *given, "digest=any")
    assert re.search(r"validation\.tfrecords +40 ", made.stdout)
    assert made.changed
    assert not commands.ended("playbooks/dataset", *given, "digest=any").changed
    given = ("run=cifar10", "config=resnet_cifar", "dataset=datasets/cifar10", "set=model.layers=8,data.limit_train=100")
    planned = commands.run_here("train", *given, "preflight=false")
    assert "100 training, 40 validation, 40 test images" in planned.stdout
    assert planned.facts["published"]["digest"]
    assert planned.facts["plan"]["dataset"]["classes"][3] == "cat"
