"""Limits of the lab's nodes."""

import pytest

from benchmarks.shared.lab_nodes import Lab
from trainer.common.errors import LockstepError

GB = 2**30


class Engine:
    """Refuses limits below what its kernel can't give back."""

    def __init__(self, least):
        self.least, self.limits = least, []

    def ask(self, command, *arguments):
        if command == "exec":
            return "total_cache 7\ntotal_rss 1000\n"
        limit = arguments[0].removeprefix("--memory=")
        if limit != "3g" and int(limit) < self.least:
            raise LockstepError("podman update: exit status 1")
        self.limits.append(limit)
        return ""


@pytest.mark.parametrize(("least", "taken"), [(0, "1100"), (1350, "1400")])
def test_a_node_gets_as_little_memory_as_its_kernel_takes_and_all_back(least, taken):
    engine = Engine(least)
    with Lab(engine, {"node1": "lab-node1"}, 0.3).memory("node1", 100):
        assert engine.limits == [taken]
    assert engine.limits == [taken, "3g"]


def test_a_limit_that_no_kernel_takes_is_named():
    with (
        pytest.raises(LockstepError, match="node1: the kernel does not take 4,200 bytes"),
        Lab(Engine(GB), {"node1": "lab-node1"}, 0.3).memory("node1", 100),
    ):
        pass
