"""What many runs leave: what is new is counted and named, and what was there before is not."""

from types import SimpleNamespace

from benchmarks.scripts import leftovers
from benchmarks.scripts.leftovers import LOOKS, Node


def node(memory=100_000_000, **lines):
    return Node({name: set(lines.get(name, ())) for name in LOOKS}, memory)


def test_what_is_new_is_counted_and_named():
    before = {"node1": node(files=["/home/lockstep/venv"]), "node2": node()}
    after = {"node1": node(102_500_000, files=["/home/lockstep/venv", "/tmp/left"], sessions=["run-w0"]), "node2": node()}
    lines = leftovers.table(before, after).splitlines()
    assert [line.split() for line in lines if line.split()[0] == "node1"] == [["node1", "0", "1", "0", "1", "2.5"]]
    assert [line.split() for line in lines if line.split()[0] == "node2"] == [["node2", "0", "0", "0", "0", "0.0"]]
    assert lines[-2:] == ["node1: sessions: run-w0", "node1: files: /tmp/left"]


def test_a_node_is_looked_at_from_all_sides():
    def on(host, *command):
        return "total_cache 7\ntotal_rss 12345\n" if command[-1] == leftovers.MEMORY else "one\ntwo\n"

    lab = SimpleNamespace(containers={"node1": "lab-node1"}, on=on)
    assert leftovers.look(lab) == {"node1": Node({name: {"one", "two"} for name in LOOKS}, 12345)}
