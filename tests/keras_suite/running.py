"""Tests of Keras in processes forked from this one, which has imported TensorFlow: a file alone, and each test on two workers."""

import functools
import gc
import json
import multiprocessing
import os
import re
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from multiprocessing import connection
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import tree
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

from trainer.keras_fit import distribute as distributing
from trainer.keras_fit.distribute import SILENT_S, Peers
from trainer.network.member import Member
from trainer.network.sockets_all_reduce import AHEAD, Direct
from trainer.user_code import callbacks

WORKERS = ["127.0.0.1:1", "127.0.0.1:2"]
"""Their names; they are connected already."""
WRITING = ("backup_and_restore", "csv_logger", "model_checkpoint", "remote_monitor", "swap_ema_weights", "tensorboard")
"""Callbacks whose tests look at files or messages, so all that write do so on both workers, and not on the chief alone."""
METHODS = ("fit", "evaluate", "predict")
TEST_S = 180.0
"""Seconds after which a test hangs."""
SEED, TOLERANCE = 0, 1e-3
NOT_REACHED = "its process ended before"
SETTINGS = ("--import-mode=importlib", "-p", "no:cacheprovider", "-p", "no:xdist", "-q", "--tb=short")
_FORKS = multiprocessing.get_context("fork")


class Outcome(NamedTuple):
    """What became of a test in one process."""

    kind: str
    """`passed`, `failed` or `skipped`."""
    why: str = ""
    """The first line of the error."""
    worked: int = 0
    """How often a compiled model was to train or evaluate; with another worker: how often the two exchanged something."""
    numbers: Sequence[float] = ()
    """What each call returned, losses and metrics of each epoch, or sums of predictions."""

    def like(self, other: "Outcome") -> bool:
        """Whether all calls returned the same, but for rounding."""
        same = len(self.numbers) == len(other.numbers)
        return same and bool(np.allclose(self.numbers, other.numbers, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True))


class Recorder:
    """A plugin of pytest that writes each test's outcome to a file, and distributes its models."""

    def __init__(self, file: Path, peers: Peers | None = None):
        """`peers`: the other worker; None: models stay as they are."""
        self._stream, self._peers, self._worked = file.open("w", buffering=1), peers, 0
        self._numbers: list[float] = []
        for name in METHODS:
            setattr(TensorFlowTrainer, name, self._called(name, getattr(TensorFlowTrainer, name)))
        if peers is not None:
            peers.direct.all_reduce = self._counted(peers.direct.all_reduce)  # type: ignore[method-assign]

    def _called(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def called(model: Any, *given: Any, **named: Any) -> Any:
            self._worked += self._peers is None and model.compiled and name != "predict"
            if self._peers is None or not model.compiled or distributing.of(model) is not None:
                result = method(model, *given, **named)
                self._numbers += _numbers(result)
                return result
            return getattr(distributing.distribute(model, self._peers), name)(*given, **named)

        return called

    def _counted(self, exchange: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any) -> Any:
            self._worked += 1
            return exchange(*given)

        return counted

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Write which tests there are."""
        for item in session.items:
            self._write(item.nodeid, Outcome("failed", NOT_REACHED))

    def _write(self, test: str, outcome: Outcome) -> None:
        self._stream.write(json.dumps([test, *outcome]) + "\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write which files have no tests, as they can't be imported."""
        if report.failed:
            self._write(report.nodeid, Outcome("failed", "can't be imported"))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Let workers have the same random numbers, as a script must."""
        keras.utils.set_random_seed(SEED)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write what is no plain success, or the end."""
        if report.when == "teardown" or not report.passed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = " ".join(str(crash.message if crash else "").split())
            self._write(report.nodeid, Outcome(report.outcome, why, self._worked, self._numbers))
            if report.when == "teardown":
                self._worked, self._numbers = 0, []


def _numbers(result: Any) -> list[float]:
    """What `fit`, `evaluate` or `predict` returned."""
    every = [np.asarray(one) for one in tree.flatten(getattr(result, "history", result))]
    return [float(one.sum(dtype=np.float64)) for one in every if one.dtype.kind in "fiub"]


def _seeded(seed: Callable[..., None]) -> Callable[..., None]:
    """`numpy.random.seed`, by which Keras' `get_test_data` draws other data in each process."""
    return lambda given=None: seed(SEED if given is None else given)


def _child(folder: Path, name: str, selected: Sequence[str], peers: Callable[[], Peers] | None = None) -> None:
    gc.freeze()
    gc.enable()
    log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.chdir(folder)
    np.random.seed = _seeded(np.random.seed)
    if "\nimport jax\n" in (folder / selected[0].partition("::")[0]).read_text(encoding="utf-8"):
        # Its tests of other backends need no more than the name.
        sys.modules.setdefault("jax", ModuleType("jax"))
    tf.get_logger().setLevel("ERROR")
    if selected[0].startswith(tuple(f"callbacks/{one}_test.py" for one in WRITING)):
        callbacks.WRITERS = ()
    recorder = Recorder(_file(folder, name), peers() if peers else None)
    pytest.main([*selected, *SETTINGS, f"--rootdir={folder}"], plugins=[recorder])
    sys.stdout.flush()


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.jsonl"


def _ended(children: Sequence[Any], files: Sequence[Path]) -> bool:
    """Whether all end by themselves, of which some write to their files every TEST_S at least; none is left."""
    written = -1
    while alive := [child for child in children if child.is_alive()]:
        ended = connection.wait([child.sentinel for child in alive], TEST_S)
        before, written = written, sum(file.stat().st_size for file in files if file.exists())
        if not ended and written == before:
            for child in alive:
                child.kill()
                child.join()
            return False
    return True


def _outcomes(file: Path) -> dict[str, Outcome]:
    """By test: the first that is no success, or the last."""
    found: dict[str, list[Outcome]] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        test, *outcome = json.loads(line)
        found.setdefault(test, []).append(Outcome(*outcome))
    return {test: next((one for one in every[1:] if one.kind != "passed"), every[-1]) for test, every in found.items()}


def alone(folder: Path, selected: str) -> dict[str, Outcome]:
    """What becomes of a file's tests, or of one, in one process, without Lockstep."""
    name = _named(selected)
    child = _FORKS.Process(target=_child, args=(folder, name, [selected]))
    child.start()
    _ended([child], [_file(folder, name)])
    return _outcomes(_file(folder, name))


def on_workers(folder: Path, tests: Sequence[str]) -> dict[str, list[Outcome]]:
    """What becomes of tests on each of two workers, which go on with the next where one fails, and may be apart from there on."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        sockets = [socket.create_connection(listening.getsockname()), listening.accept()[0]]

    def peers(rank: int) -> Peers:
        sockets[1 - rank].close()
        member = Member(rank, WORKERS)
        return Peers(member, Direct(rank, {1 - rank: sockets[rank]}, SILENT_S, member.hosts, AHEAD))

    names = [f"{_named(tests[0])}.{rank}" for rank in (0, 1)]
    children = [
        _FORKS.Process(target=_child, args=(folder, name, tests, functools.partial(peers, rank))) for rank, name in enumerate(names)
    ]
    for child in children:
        child.start()
    for one in sockets:
        one.close()
    files = [_file(folder, name) for name in names]
    missing = Outcome("failed", NOT_REACHED if _ended(children, files) else f"hung for {TEST_S:.0f} s")
    ranks = [_outcomes(file) for file in files]
    return {test: [missing if (one := each.get(test, missing)).why == NOT_REACHED else one for each in ranks] for test in tests}


def _named(test: str) -> str:
    return re.sub(r"[^\w.]+", "-", test)
