"""All workers resume from the newest intact state that any of them has."""

from pathlib import Path

import numpy as np
import pytest

from tests.unit.samples import flip_a_bit
from tests.unit.workers import together, workers
from trainer.checkpoint.resume import Resuming
from trainer.checkpoint.states import Memories, Progress, States
from trainer.common.errors import LockstepError
from trainer.network.host_array import HostArray


class Cluster:
    """Workers on hosts of these names, each with a disk of its own below a folder."""

    def __init__(self, folder, hosts):
        self.folder, self.hosts, self.workers = folder, list(hosts), workers(len(hosts), hosts)
        self.heard = {host: [] for host in hosts}

    def state(self, host):
        return States(self.folder / host / "state", 9, self.heard[host].append)

    def memory(self, worker):
        host = worker.member.hosts[worker.member.rank]
        return Memories(self.folder / host / "memory", worker.member, 9, [HostArray((2,))], self.heard[host].append)

    def write(self, host, step, attempt="first", hosts=None, **more):
        """A state on a host, whose numbers are its step."""
        progress = Progress(step=step, attempt=attempt, hosts=hosts or self.hosts, restarts=2, **more)
        self.state(host).write([np.full(3, step, np.float32)], progress)

    def write_part(self, host, step, attempt="first"):
        worker = self.workers[self.hosts.index(host)]
        self.memory(worker).write(step, attempt, [np.full(2, step + worker.member.rank, np.float32)])

    def resume(self, memory=False):
        """Each worker's weights, memory and progress."""

        def resumed(worker):
            host = worker.member.hosts[worker.member.rank]
            weights, memories = HostArray((3,)), self.memory(worker)
            memories.memory = memories.memory if memory else []
            weights.assign(np.full(3, -1 - worker.member.rank, np.float32))
            resuming = Resuming(worker, self.state(host), self.heard[host].append)
            progress = resuming.restore([weights], memories)
            return weights.numpy().tolist(), [array.numpy().tolist() for array in memories.memory], progress

        return together(resumed, self.workers)

    def path(self, host, step):
        return self.state(host).files.path(step)


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path, ["pi1", "pi2", "pi3"])


def test_chiefs_state_reaches_all_and_nobody_is_warned(cluster):
    for host in ("pi1", "pi2"):
        cluster.write(host, 8)
    results = cluster.resume()
    assert [weights for weights, _, _ in results] == [[8.0] * 3] * 3
    assert all((progress.step, progress.restarts, progress.hosts) == (8, 3, cluster.hosts) for _, _, progress in results)
    assert len({progress.attempt for _, _, progress in results}) == 1
    assert results[0][2].attempt != "first"
    assert not any(cluster.heard.values())


@pytest.mark.parametrize(("before", "message"), [((), "has no training state"), ((4,), "has only that of step 4")])
@pytest.mark.parametrize("holder", ["pi2", "pi3"])
def test_chief_without_its_disk_gets_anothers_state(cluster, holder, before, message):
    rows = [{"epoch": 1, "loss": 0.5}]
    cluster.write(holder, 8, history=rows)
    for step in before:
        cluster.write("pi1", step)
    results = cluster.resume()
    assert [weights for weights, _, _ in results] == [[8.0] * 3] * 3
    assert [progress.history for _, _, progress in results] == [rows] * 3
    rank = cluster.hosts.index(holder)
    assert cluster.heard["pi1"] == [f"the chief {message}: all workers continue from the state of step 8 of rank {rank} ({holder})"]


def test_damaged_state_names_both_and_uses_its_copy(cluster):
    """A damaged state gives way to its copy and the warning names both."""
    for host in ("pi1", "pi2"):
        cluster.write(host, 8)
    flip_a_bit(cluster.path("pi1", 8))
    assert [weights for weights, _, _ in cluster.resume()] == [[8.0] * 3] * 3
    path = cluster.path("pi1", 8)
    assert cluster.heard["pi1"] == [
        f"{path} is damaged (its digest differs): left out, and kept as {path.parent.parent / 'damaged' / f'state-{path.name}'}",
        f"{path}: damaged; all workers continue from the state of step 8 of rank 1 (pi2) instead",
    ]


def test_older_damage_takes_nothing_from_anybody(cluster):
    for step in (4, 8):
        cluster.write("pi1", step)
    flip_a_bit(cluster.path("pi1", 4))
    assert [weights for weights, _, _ in cluster.resume()] == [[8.0] * 3] * 3
    assert ["left out, and kept as" in warning for warning in cluster.heard["pi1"]] == [True]


def test_damaged_only_state_starts_anew_with_word(cluster):
    """With the only state damaged the user learns that it starts anew."""
    cluster.write("pi1", 8)
    flip_a_bit(cluster.path("pi1", 8))
    cluster.resume()
    assert cluster.heard["pi1"][-1] == f"{cluster.path('pi1', 8)}: damaged; the training starts anew instead"


def test_a_state_under_another_steps_name_is_damage(cluster):
    cluster.write("pi1", 8)
    cluster.path("pi1", 8).rename(cluster.path("pi1", 9))
    cluster.write("pi2", 4)
    assert [weights for weights, _, _ in cluster.resume()] == [[4.0] * 3] * 3
    assert "is damaged (it is of step 8)" in cluster.heard["pi1"][0]


def test_state_of_another_model_is_refused(cluster):
    cluster.state("pi1").write([np.zeros(4, np.float32)], Progress(step=8))
    alone = Cluster(cluster.folder, ["pi1"])
    with pytest.raises(LockstepError, match=r"step-000000008.npz: a training state of another model; use another run name"):
        alone.resume()


def test_a_state_of_different_weights_is_left_out(cluster):
    """A state that was saved while workers differed is not used, whichever worker has it."""
    cluster.write("pi1", 4, digests=["a", "a", "a"])
    cluster.write("pi1", 8, digests=["a", "b", "a"])
    assert [weights for weights, *_ in cluster.resume()] == [[4, 4, 4]] * 3
    (warning,) = cluster.heard["pi1"]
    assert warning.endswith("step-000000008.npz: left out, as the workers' weights differed when it was saved")


class TestMemory:
    """What each worker's reduction has not sent belongs to the state of the same step and attempt."""

    def everywhere(self, cluster, step):
        for host in ("pi1", "pi2"):
            cluster.write(host, step)
        for host in cluster.hosts:
            cluster.write_part(host, step)

    def test_each_worker_has_its_own_again(self, cluster):
        self.everywhere(cluster, 8)
        results = cluster.resume(memory=True)
        assert [memory for _, memory, _ in results] == [[[8.0, 8.0]], [[9.0, 9.0]], [[10.0, 10.0]]]
        assert all(progress.inexact == [] for _, _, progress in results)

    @pytest.mark.parametrize("harm", [Path.unlink, flip_a_bit])
    def test_if_one_lost_its_part_an_older_state_with_all_parts_is_used(self, cluster, harm):
        for step in (4, 8):
            self.everywhere(cluster, step)
        harm(path := cluster.folder / "pi3" / "memory" / cluster.path("pi3", 8).name)
        results = cluster.resume(memory=True)
        aside = [path.parent.parent / "damaged" / f"memory-{path.name}"] if harm is flip_a_bit else []
        assert list(path.parent.parent.glob("damaged/*")) == aside
        assert [(weights[0], memory[0][0]) for weights, memory, _ in results] == [(4.0, 4.0), (4.0, 5.0), (4.0, 6.0)]
        assert all((progress.step, progress.inexact) == (4, []) for _, _, progress in results)

    def test_the_older_one_may_be_on_another_worker_only(self, cluster):
        self.everywhere(cluster, 4)
        cluster.path("pi1", 4).unlink()
        self.everywhere(cluster, 8)
        (cluster.folder / "pi3" / "memory" / cluster.path("pi3", 8).name).unlink()
        assert [weights for weights, _, _ in cluster.resume(memory=True)] == [[4.0] * 3] * 3

    def test_with_the_chiefs_disk_its_part_is_gone_and_all_start_anew_with_it(self, cluster):
        self.everywhere(cluster, 8)
        cluster.path("pi1", 8).unlink()
        (cluster.folder / "pi1" / "memory" / cluster.path("pi1", 8).name).unlink()
        results = cluster.resume(memory=True)
        assert [(weights[0], memory) for weights, memory, _ in results] == [(8.0, [[0.0, 0.0]])] * 3
        why = "what the reduction had not sent at step 8 started anew (missing or damaged on rank 0)"
        assert all(progress.inexact == [why] for _, _, progress in results)
        assert cluster.heard["pi1"][-1] == f"{why}: the weights will differ a little from those of a run without interruption"

    def test_a_part_of_another_attempt_is_none(self, cluster):
        self.everywhere(cluster, 8)
        cluster.write_part("pi2", 8, attempt="second")
        assert cluster.resume(memory=True)[0][2].inexact

    def test_what_other_workers_saved_starts_anew_even_if_an_older_state_has_all_parts(self, cluster):
        self.everywhere(cluster, 4)
        cluster.write("pi1", 8, attempt="second", hosts=["pi1", "pi2"])
        results = cluster.resume(memory=True)
        assert [weights for weights, _, _ in results] == [[8.0] * 3] * 3
        assert "2 workers saved it, 3 go on" in results[0][2].inexact[0]
