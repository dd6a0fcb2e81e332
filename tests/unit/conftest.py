"""What several test files need: class folders, MNIST-format files, Python files that are in no package."""

import gzip
import importlib
import importlib.util
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.fake_clock import FakeClock
from tests.ports import free_ports
from tests.unit.samples import idx_bytes, image_bytes

ROOT = Path(__file__).resolve().parents[2]
# Where Ansible would put the project's module_utils, each before those that import it.
for name in ("cgroup", "claims", "files", "tmux", "tmux_socket", "host", "sealed", "ports"):
    sys.modules.setdefault(f"ansible.module_utils.lockstep_{name}", importlib.import_module(f"lockstep_{name}"))


def load_file(path: Path, name: str):
    """Import a Python file that is in no package."""
    spec = importlib.util.spec_from_file_location(name, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def make_folder(tmp_path):
    """Write a dataset folder: `make_folder(train={"cat": 3, "dog": 2}, test={"cat": 1, "dog": 1})`."""

    def make(name="pets", train=None, test=None):
        root, number = tmp_path / name, 0
        for split, classes in (("train", train or {"cat": 3, "dog": 2}), ("test", test or {"cat": 1, "dog": 1})):
            for label, count in classes.items():
                (root / split / label).mkdir(parents=True)
                for index in range(count):
                    (root / split / label / f"{index}.png").write_bytes(image_bytes(number))
                    number += 1
        return root

    return make


@pytest.fixture
def make_idx(tmp_path):
    """Write the four files of an MNIST-format dataset; `labels` for train and test."""

    def make(name="digits", train=(0, 1, 0, 1, 1), test=(1, 0), size=(4, 3), zipped=()):
        root = tmp_path / name
        root.mkdir()
        rng = np.random.default_rng(0)
        for stem, labels in (("train", train), ("t10k", test)):
            images = rng.integers(0, 256, (len(labels), *size)).astype(np.uint8)
            for kind, array in (("images-idx3", images), ("labels-idx1", np.array(labels))):
                file, data = f"{stem}-{kind}-ubyte", idx_bytes(array)
                if stem in zipped:
                    (root / f"{file}.gz").write_bytes(gzip.compress(data))
                else:
                    (root / file).write_bytes(data)
        return root

    return make


@pytest.fixture
def port():
    """A port on which nobody listens."""
    return free_ports(1)[0]


@pytest.fixture(scope="session")
def worker_claim():
    """The module `plugins/modules/worker_claim.py`."""
    return load_file(ROOT / "plugins" / "modules" / "worker_claim.py", "worker_claim")


@pytest.fixture(scope="session")
def install():
    """The module `requirements/install.py`."""
    return load_file(ROOT / "requirements" / "install.py", "lockstep_install")


@pytest.fixture
def clock(monkeypatch):
    """A clock whose time passes while all wait for it; what still waits for it when the test is over ends."""
    made, others = FakeClock(), threading.excepthook
    yield made
    # As without pytest, whose own hook warns of it.
    monkeypatch.setattr(threading, "excepthook", lambda given: None if given.exc_type is SystemExit else others(given))
    made.close()
