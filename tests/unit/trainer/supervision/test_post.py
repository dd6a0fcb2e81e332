"""A supervisor's post, and a worker's place in a queue, from the record of a launch."""

import json
from pathlib import Path

import pytest

from control.common import configurations
from trainer.host.claims import session_name
from trainer.supervision.post import Post
from trainer.supervision.queue import Place
from trainer.supervision.restart_policy import Elasticity, Limits

HOSTS = [
    {"name": f"node{rank}", "address": address, "port": 12345, "direct_port": 13345, "root": f"/srv/{rank}", "silence": 45.0 + rank}
    for rank, address in enumerate(["10.0.0.0", "10.0.0.1", "fd00::2", "10.0.0.3"])
]


@pytest.fixture
def launched(tmp_path):
    """Writes the record of a launch whose last host is a spare, as seen on node1; gives the run directory."""

    def write(hosts=HOSTS, **recovery) -> Path:
        settings = configurations.to_dict(configurations.build({"recovery": recovery}))["recovery"]
        record = {"run": "my.run", "launch": "n", "ticket": "1-ab", "recovery": settings, "hosts": hosts[:3], "spares": hosts[3:]}
        (tmp_path / "cluster.json").write_text(json.dumps(record))
        own = tmp_path / "workers/node1"
        own.mkdir(parents=True)
        (own / "secret").write_text("ab" * 32)
        return tmp_path

    return write


def test_a_supervisor_knows_where_all_workers_listen(launched):
    post = Post.read(run := launched(max_restarts=3, max_restarts_per_hour=2), "node1", ["train"])
    assert (post.rank, post.hosts, post.workers) == (1, ["node0", "node1", "node2", "node3"], 3), "the last host is a spare"
    assert list(post.endpoints) == ["10.0.0.0:12345", "10.0.0.1:12345", "[fd00::2]:12345", "10.0.0.3:12345"]
    assert list(post.peers) == [("10.0.0.0", 13345), ("10.0.0.1", 13345), ("fd00::2", 13345), ("10.0.0.3", 13345)]
    assert (post.limits, post.patience.silence, post.elastic, post.servers, post.standby) == (Limits(3, 2), 46.0, None, None, [])
    assert session_name("my.run", 1, "/srv/1") in post.session
    assert str(run / "workers/node1") in post.session


def test_recovery_is_as_it_was_asked_for(launched):
    post = Post.read(launched(elastic=True, elastic_wait=20, min_workers=2, standby=True), "node1", ["train"])
    assert (post.elastic, bool(post.standby)) == (Elasticity(20.0, 2), True)


def test_asynchronous_supervisor_knows_who_takes_no_steps(launched):
    hosts = [{**HOSTS[0], "server_port": 12845}, HOSTS[1], {**HOSTS[2], "role": "evaluator"}]
    post = Post.read(launched(hosts), "node1", [])
    assert (post.servers, post.apart) == ({0: "10.0.0.0:12845"}, {2: "evaluator"})


def test_a_queued_worker_knows_its_ports(launched):
    hosts = [HOSTS[0], {**HOSTS[1], "server_port": 12845}, *HOSTS[2:]]
    place = Place.read(run := launched(hosts), "node1")
    assert (place.port, place.ports, place.ticket, place.launch) == (12345, [12345, 13345, 12845], "1-ab", "n")
    assert (place.root, place.folder) == (Path("/srv/1"), run / "workers/node1")
