"""`lockstep.distribute` on two workers, each with its rows of every batch, against Keras' own `fit` of the same script alone."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.distributed_worker import WAYS
from tests.ports import free_ports
from tests.project import ROOT, SLOWEST

USER = ROOT / "trainer" / "user"


def start(argv, **more):
    """A process of a script that imports lockstep."""
    environment = {**os.environ, "PYTHONPATH": f"{USER}{os.pathsep}{ROOT}", "TF_CPP_MIN_LOG_LEVEL": "2", **more}
    return subprocess.Popen([sys.executable, *map(str, argv)], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def together(argv, folder):
    """Two processes as Lockstep starts them; `argv` by rank."""
    secret, ports = folder / "secret", free_ports(4)
    secret.write_text("5e" * 32)
    secret.chmod(0o600)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    workers = {"worker": addresses[:2]}
    shared = {"LOCKSTEP_PEERS": ",".join(addresses[2:]), "LOCKSTEP_SECRET": str(secret)}
    configs = [json.dumps({"cluster": workers, "task": {"type": "worker", "index": rank}}) for rank in (0, 1)]
    return [start(argv(rank), TF_CONFIG=config, **shared) for rank, config in enumerate(configs)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Weights and histories of each program: on rank 0, on rank 1, alone."""
    folder = tmp_path_factory.mktemp("distributed")
    files = [folder / f"{name}.npz" for name in ("0", "1", "alone")]
    both = together(lambda rank: ["-m", "tests.distributed_worker", files[rank]], folder)
    errors = [worker.communicate(timeout=300 * SLOWEST)[1] for worker in both]
    assert [worker.returncode for worker in both] == [0, 0], errors
    alone = start(["-m", "tests.distributed_worker", files[2]])
    assert alone.communicate(timeout=300 * SLOWEST)[1] is not None
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
    (tmp_path / "script.py").write_text(DIFFERENT)
    both = together(lambda rank: [tmp_path / "script.py"], tmp_path)
    for worker in both:
        error = worker.communicate(timeout=120 * SLOWEST)[1]
        assert worker.returncode == 1
        assert "LockstepError: the workers have different batches, and each takes its rows of the same one. Fix: shuffle by a seed" in error
