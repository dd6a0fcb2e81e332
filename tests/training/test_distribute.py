"""`lockstep.distribute` on two workers, each with its rows of every batch, against Keras' own `fit` of the same script alone."""

import json
import os

import numpy as np
import pytest

from tests import preloaded
from tests.distributed_worker import WAYS
from tests.ports import free_ports
from tests.project import ROOT, SLOWEST

USER = ROOT / "trainer" / "keras_fit" / "site"


def start(words, folder, name, **more):
    """A process of a script that imports lockstep; its output goes to a file."""
    environment = {**preloaded.ONE_THREAD, "PYTHONPATH": f"{USER}{os.pathsep}{ROOT}", **more}
    return preloaded.logged(words, folder, folder / f"{name}.log", environment)


def together(words, folder):
    """Two processes as Lockstep starts them; `words` by rank."""
    secret, ports = folder / "secret", free_ports(4)
    secret.write_text("5e" * 32)
    secret.chmod(0o600)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    workers = {"worker": addresses[:2]}
    shared = {"LOCKSTEP_PEERS": ",".join(addresses[2:]), "LOCKSTEP_SECRET": str(secret)}
    configs = [json.dumps({"cluster": workers, "task": {"type": "worker", "index": rank}}) for rank in (0, 1)]
    return [start(words(rank), folder, rank, TF_CONFIG=config, **shared) for rank, config in enumerate(configs)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Weights and histories of each program: on rank 0, on rank 1, alone."""
    folder = tmp_path_factory.mktemp("distributed")
    files = [folder / f"{name}.npz" for name in ("0", "1", "alone")]
    words = [("-m", "tests.distributed_worker", str(file)) for file in files]
    started = [*together(lambda rank: words[rank], folder), start(words[2], folder, "alone")]
    codes = [process.wait(300 * SLOWEST) for process in started]
    assert codes == [0, 0, 0], "\n".join(file.with_suffix(".log").read_text() for file in files)
    return [dict(np.load(file)) for file in files]


@pytest.mark.parametrize("name", WAYS)
def test_weights_and_history_are_those_of_one_worker(trained, name):
    first, second, alone = trained
    keys = [key for key in alone if key.startswith(f"{name}/")]
    assert len(keys) > 1
    for key in keys:
        assert np.array_equal(first[key], second[key]), key
        np.testing.assert_allclose(first[key], alone[key], rtol=1e-5, atol=1e-6, err_msg=key)


DIFFERENT = """
import keras, lockstep, numpy as np
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.full((8, 2), lockstep.rank(), np.float32)
lockstep.distribute(model).fit(x, x[:, :1], verbose=0)
"""


def test_different_data_is_refused_with_the_reason(tmp_path):
    both = together(lambda rank: ("-c", DIFFERENT), tmp_path)
    assert [process.wait(120 * SLOWEST) for process in both] == [1, 1]
    for rank in (0, 1):
        error = (tmp_path / f"{rank}.log").read_text()
        assert "LockstepError: the workers have different batches, and each takes its rows of the same one. Fix: shuffle by a seed" in error
