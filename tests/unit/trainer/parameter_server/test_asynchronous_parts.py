"""Asynchronous runs without processes: roles, the bound of staleness, sizes."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from control.common import configurations
from trainer.common.errors import ClusterError, ConfigError
from trainer.config import loading, schedule
from trainer.parameter_server.engine import QUEUED, Asynchronous, may_begin
from trainer.parameter_server.roles import CHIEF, SERVER, WORKER, Task, of_host

HOSTS = ["node1:12345", "node2:12345", "node3:12345"]


def environment(cluster):
    return {"TF_CONFIG": json.dumps(cluster)}


def test_the_first_host_is_the_chief_and_the_others_are_workers():
    assert of_host(HOSTS, {0: "node1:12845"}, {}, 0) == {
        "cluster": {"chief": ["node1:12345"], "worker": ["node2:12345", "node3:12345"], "ps": ["node1:12845"]},
        "task": {"type": "chief", "index": 0},
    }
    assert of_host(HOSTS, {0: "node1:12845"}, {}, 2)["task"] == {"type": "worker", "index": 1}


def test_a_task_knows_its_address():
    task = Task.from_environment(environment(of_host(HOSTS, {0: "node1:12845"}, {}, 1)))
    assert task is not None
    assert (task.role, task.index, task.address) == (WORKER, 0, "node2:12345")


@pytest.mark.parametrize(
    "cluster",
    [{"cluster": {"worker": HOSTS}, "task": {"type": "worker", "index": 0}}, {}, {"cluster": [], "task": {}}, {"cluster": {"worker": 3}}],
)
def test_what_describes_no_such_cluster_is_left_to_the_reader_of_a_synchronous_one(cluster):
    assert Task.from_environment(environment(cluster)) is None
    assert Task.from_environment({}) is None


@pytest.mark.parametrize(("role", "index"), [(CHIEF, 1), (WORKER, 2), (SERVER, -1), ("evaluator", 0)])
def test_a_task_that_is_none_of_the_cluster_is_refused(role, index):
    cluster = of_host(HOSTS, {0: "node1:12845"}, {}, 0) | {"task": {"type": role, "index": index}}
    with pytest.raises(ClusterError, match=f"{role} {index} is none of"):
        Task.from_environment(environment(cluster))


def test_a_cluster_without_servers_is_refused():
    cluster = of_host(HOSTS, {}, {}, 0)
    with pytest.raises(ClusterError, match="one each of chief, worker, ps is needed"):
        Task.from_environment(environment(cluster))


def test_a_validation_holds_no_more_batches_than_the_workers_can_be_at():
    """The examples may be larger than the chief's memory."""
    engine, taken, most = Asynchronous.__new__(Asynchronous), [0, 0], [0]

    def batches():
        for number in range(50):
            taken[0] += 1
            most[0] = max(most[0], taken[0] - taken[1])
            yield number, (np.array([float(number)]),)

    def fetch(data):
        taken[1] += 1
        return data[0].numpy()

    def schedule(_, args):
        done = SimpleNamespace(wait=lambda _: True)
        return SimpleNamespace(_status_available_event=done, fetch=lambda: fetch(args[0]))

    engine._coordinator, engine._addresses, engine._test_call = SimpleNamespace(schedule=schedule), HOSTS[1:], None
    engine._job, engine.model = SimpleNamespace(config=loading.build({})), SimpleNamespace()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.models.compiled_model.CompiledModel.metric_size", 1)
        assert engine.validate(batches(), 49).tolist() == [sum(range(50))]
    assert most[0] == QUEUED * 2 + 1


def furthest(workers: int, staleness: int | None, ended: set[int]) -> int:
    """How many calls are handed out in all, given those that end; the others never do."""
    number = 0
    while True:
        under_way = [one for one in range(number) if one not in ended]
        if not may_begin(number, min(under_way, default=number), len(under_way), workers, staleness):
            return number
        number += 1


def test_without_a_bound_the_others_go_on_beside_a_frozen_worker():
    """Its calls, and those that wait for a worker, are all that is under way."""
    assert furthest(4, None, set(range(1, 1000))) > 1000
    assert furthest(4, None, set()) == QUEUED * 4


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("staleness", [0, 1, 5])
def test_nobody_is_further_ahead_of_the_slowest_than_the_bound(workers, staleness):
    """The first call never ends: the others end the rounds up to the bound, and no call of the next one begins."""
    assert furthest(workers, staleness, set(range(1, 1000))) == workers * (1 + staleness)


def test_a_step_is_of_one_workers_batch():
    config = loading.build({"strategy": {"name": "parameter_server"}, "train": {"batch_size": 16}})
    assert schedule.global_batch(config, 5) == 16
    sizes = schedule.counts(config, 5, 1000)
    assert (sizes.workers, sizes.global_batch, sizes.steps_per_epoch) == (5, 16, 50)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ({"staleness": 2}, r"strategy.staleness: 2 is not allowed; it must be null without strategy.name="),
        ({"staleness": -1}, r"strategy\.staleness"),
        ({"name": "ps"}, r"strategy\.name"),
    ],
)
def test_settings_are_checked(strategy, message):
    """A bound of staleness that would change nothing is refused."""
    with pytest.raises(ConfigError, match=message):
        configurations.build({"strategy": strategy})
    assert configurations.build({"strategy": {"staleness": 2, "name": "parameter_server"}}).strategy.staleness == 2
