"""`lockstep.distribute`: what workers of a script do alike, though it has set no seed, and what is left as it was."""

import functools
import json
import random
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from trainer.common.errors import RESTART, ClusterError, PeerLost
from trainer.keras_fit import distribute
from trainer.network.member import Member, tf_config

ENDPOINTS = ["10.0.0.1:12345", "10.0.0.2:12345"]


@pytest.fixture
def generators():
    """Those of the process, which are put back."""
    before = random.getstate(), np.random.get_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])


def one_of_two(**peers):
    """A worker whose peers answer so."""
    made = distribute.Distributed.__new__(distribute.Distributed)
    member = SimpleNamespace(hosts=["pi1", "pi2"], is_chief=True)
    made.peers, made._saw_others = SimpleNamespace(member=member, **peers), False
    made._warn_once = functools.cache(made._warn)
    return made


def states(seed):
    """Of generators with a seed, as workers tell each other."""
    random.seed(seed)
    np.random.seed(seed)
    return json.dumps([random.getstate(), [*map(distribute._plain, np.random.get_state())]])


@pytest.mark.usefixtures("generators")
def test_generators_begin_as_the_chiefs():
    """Python's and NumPy's."""
    chiefs = states(5)
    expected = random.random(), np.random.random()
    states(6)
    one_of_two(gather=lambda row: np.array([row, row]), text_from_chief=lambda _: chiefs).same_order()
    assert (random.random(), np.random.random()) == expected


def test_logs_that_differ_are_told_once(capsys):
    """As where a loss draws without a seed."""
    worker = one_of_two(digests=lambda mine: [mine, "another"])
    assert all(worker.saw_others(epoch, {"loss": 1.0}) for epoch in range(2))
    assert capsys.readouterr().err.count("the logs of rank 1 (pi2) differ from the chief's") == 1


def test_equal_logs_are_not_told(capsys):
    """Whatever else a callback has put there."""
    assert not one_of_two(digests=lambda mine: [mine, mine]).saw_others(0, {"loss": 1.0, "note": object()})
    assert not capsys.readouterr().err


def test_data_of_unknown_length_are_told_once(capsys):
    """Where Keras' own `fit` counts a step more."""
    worker = one_of_two()
    worker.model = SimpleNamespace(run_eagerly=False)
    worker.unknown_length()
    worker.unknown_length()
    assert capsys.readouterr().err.count("do not say how many batches they have") == 1


def build():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    return model


def test_a_batch_of_ones_own_is_not_exchanged():
    """With the model's own step, traced once; the distributed one is in its place again."""
    x, y = np.arange(30.0).reshape(10, 3) / 30, np.ones((10, 1))
    plain, member = build(), SimpleNamespace(rank=0, workers=2)
    model = distribute.distribute(build(), SimpleNamespace(member=member, group=None, digests=lambda digest: [digest] * 2))
    steps = model.train_step, model.test_step
    for _ in range(2):
        assert model.train_on_batch(x, y) == pytest.approx(plain.train_on_batch(x, y), rel=1e-6)
        assert model.test_on_batch(x, y) == pytest.approx(plain.test_on_batch(x, y), rel=1e-6)
    np.testing.assert_allclose(model.get_weights()[0], plain.get_weights()[0], rtol=1e-6)
    assert (model.train_step, model.test_step) == steps
    assert (model.train_function, model.test_function) == (None, None)


def test_error_after_a_loss_says_what_to_do(monkeypatch, capsys):
    """An error after the loss of a worker ends this one and says what to do."""
    codes = []
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    monkeypatch.setattr(distribute.os, "_exit", codes.append)
    monkeypatch.setenv("LOCKSTEP_RUN", "mine")
    connections = SimpleNamespace(lost=None)
    distribute._end_with(connections)
    sys.excepthook(ValueError, ValueError("of the script's own"), None)
    assert (codes, capsys.readouterr().err) == ([], "")
    connections.lost = PeerLost("rank 1 (10.0.0.2) closed its connection: it ended", 1)
    sys.excepthook(ValueError, ValueError("of TensorFlow"), None)
    assert codes == [RESTART]
    assert capsys.readouterr().err == (
        "lockstep: rank 1 (10.0.0.2) closed its connection: it ended; this worker ends, too. "
        "Fix: ansible-playbook train.yml -e run=mine starts all again\n"
    )


def test_peers_need_what_the_launch_gives_them():
    assert distribute.Peers.from_environment({}) is None
    assert distribute.Peers.from_environment({"TF_CONFIG": json.dumps(tf_config(ENDPOINTS[:1], 0))}) is None
    with pytest.raises(ClusterError, match="LOCKSTEP_PEERS and LOCKSTEP_SECRET is not set"):
        distribute.Peers.from_environment({"TF_CONFIG": json.dumps(tf_config(ENDPOINTS, 0))})


def test_whole_numbers_are_summed_exactly():
    others = np.array([[-1, 2**31 - 1, 0]], np.int32)
    halves = others.view(np.uint16).astype(np.float32).ravel()
    peers = distribute.Peers(Member(0, ENDPOINTS), SimpleNamespace(all_reduce=lambda arrays: [array + halves for array in arrays]))
    mine = np.array([[1, -(2**31), 7]], np.int32)
    assert peers.sum(mine).tolist() == (mine + others).tolist()
