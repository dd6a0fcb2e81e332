"""Which hosts import TensorFlow while a plan is made, and what becomes of the processes that do."""

import base64
import threading
import zlib
from types import SimpleNamespace

import pytest

from control.common.task import Task
from control.common.worker_environment import of_worker
from control.remote.trainer_package import TRAINER
from control.runs.launch import preload
from trainer.rundir.launch_record import Host
from trainer.worker.backend import LIBRARIES


class Hosts:
    """Fake hosts: which server each was told to start and to end, in order."""

    def __init__(self, monkeypatch):
        self.told, self.running, self.broken = [], set(), {}
        self._lock, self._others = threading.Condition(), set(threading.enumerate())
        monkeypatch.setattr(preload.modules, "execute", self._execute)

    def _execute(self, action, module, arguments):
        assert module == "tmux_session"
        host, state = action.host, arguments.get("state", "present")
        try:
            if host in self.broken:
                raise self.broken[host]
            return {"changed": host not in self.running, "arguments": arguments}
        finally:
            with self._lock:
                self.told.append((state, host, arguments))
                self._lock.notify_all()

    def await_starts(self, count):
        """Until so many servers were told to start, and their threads have ended."""
        with self._lock:
            assert self._lock.wait_for(lambda: len(self.told) >= count, 60)
        for thread in set(threading.enumerate()) - self._others:
            thread.join(60)

    def names(self, state):
        return sorted(host for told, host, _ in self.told if told == state)


@pytest.fixture
def fake(monkeypatch):
    return Hosts(monkeypatch)


def task(hosts, **variables):
    """A command's task; `variables` of all hosts, or of one by its name."""
    common = {"worker_root": "/srv/lockstep", **{name: value for name, value in variables.items() if name.startswith("worker_")}}
    hostvars = {host.name: common | variables.get(host.name, {}) for host in hosts}
    return Task({}, {"hostvars": hostvars}, False, on=lambda name: SimpleNamespace(host=name))


def cluster(*addresses, **given):
    return [Host(name=f"node{number}", address=address, **given) for number, address in enumerate(addresses, 1)]


def servers(hosts, **variables):
    """The names of the hosts on which servers are started."""
    return [server.action.host for server in preload._servers(task(hosts, **variables), hosts)]


@pytest.mark.parametrize(
    ("hosts", "variables", "expected"),
    [
        (cluster("a", "b"), {}, ["node1", "node2"]),
        (cluster("a", "a", "b", "a"), {}, ["node1", "node3"]),
        (cluster("a", "a"), {"node2": {"worker_python": "/other/python"}}, ["node1", "node2"]),
        (cluster("a", "a"), {"node2": {"worker_caches": "/other/caches"}}, ["node1", "node2"]),
        (cluster("a", "a"), {"node2": {"worker_root": "/other"}}, ["node1", "node2"]),
        (cluster("a", "a"), {"worker_python": "p", "worker_caches": "c", "node2": {"worker_root": "/other"}}, ["node1"]),
        (cluster("a", "b", gpus=1), {}, []),
        (cluster("a", "b"), {"node1": {"worker_preload": False}}, ["node2"]),
    ],
    ids=["each host", "one address", "another Python", "other caches", "another root", "shared by roots", "with GPUs", "where it is off"],
)
def test_workers_that_can_share_a_server_do(hosts, variables, expected):
    assert servers(hosts, **variables) == expected


@pytest.mark.parametrize("given", ["false", "no", "False"])
def test_preloading_is_off_by_text_too(given):
    """As of `-e worker_preload=false`."""
    assert servers(cluster("a"), worker_preload=given) == []


def key(python, caches, code):
    return preload.key({"python": python, "caches": caches, "sha256": code})


def test_the_key_is_of_all_that_matters(tmp_path, monkeypatch):
    """A server of another Python, folder of caches, trainer or program is never used."""
    mine, others = ("python", "caches", "1"), [("python", "others", "1"), ("pythonc", "aches", "1"), ("python", "caches", "2")]
    keys = [key(*one) for one in (mine, *others)]
    assert key(*mine) == keys[0]
    (tmp_path / "program.py").write_text("pass")
    monkeypatch.setattr(preload, "PROGRAM", tmp_path / "program.py")
    assert len({*keys, key(*mine)}) == 5


def test_a_session_has_the_environment_of_workers():
    hosts = cluster("a", environment={"A": "b c"})
    (server,) = preload._servers(task(hosts), hosts)
    python, caches = "/srv/lockstep/venv/bin/python", "/srv/lockstep/caches"
    name, argv = key(python, caches, TRAINER.sha256()), server.session["argv"]
    expected = {**of_worker({"A": "b c"}, caches), "CUDA_VISIBLE_DEVICES": "", "PYTHONSAFEPATH": "1"}
    assert argv[: argv.index(python)] == ["env", *(f"{name}={value}" for name, value in expected.items())]
    _, option, program, *arguments = argv[argv.index(python) :]
    assert (option, arguments) == ("-c", [name, "0", *LIBRARIES])
    assert zlib.decompress(base64.b64decode(program.split("'")[1])).decode() == preload.PROGRAM.read_text()
    assert (server.session["name"], server.session["chdir"]) == (name, "/")


def test_a_session_fits_into_message_of_tmux():
    """Which holds 16 KiB, with the client's environment aside."""
    hosts = cluster("a", environment={"A": "b" * 1000})
    (server,) = preload._servers(task(hosts), hosts)
    assert sum(len(word.encode()) + 1 for word in server.session["argv"]) < 15 * 1024


def test_servers_stay_for_the_run(fake):
    hosts = cluster("a", "b")
    with preload.preloading(task(hosts), hosts):
        fake.await_starts(2)
    assert (fake.names("present"), fake.names("absent")) == (["node1", "node2"], [])


@pytest.mark.parametrize("error", [OSError("unreachable"), ValueError("no answer")])
def test_a_host_that_fails_disturbs_nothing(fake, error):
    fake.broken["node1"] = error
    hosts, done = cluster("a", "b"), []
    with preload.preloading(task(hosts), hosts):
        fake.await_starts(2)
        done.append(True)
    assert (done, fake.names("present")) == ([True], ["node1", "node2"])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failed_plan_ends_what_was_started(fake, error):
    """Not the server of another run, and not one that never was."""
    fake.running.add("node2")
    fake.broken["node3"] = OSError("unreachable")
    hosts = cluster("a", "b", "c", "d")

    def fail():
        with preload.preloading(task(hosts), hosts):
            fake.await_starts(4)
            raise error

    with pytest.raises(error):
        fail()
    assert fake.names("absent") == ["node1", "node4"]
    (key,) = {arguments["name"] for _, _, arguments in fake.told}
    assert [arguments for state, _, arguments in fake.told if state == "absent"] == [{"name": key, "state": "absent", "grace": 0}] * 2


def test_a_host_that_answers_late_delays_nothing(fake, monkeypatch):
    """The plan is made meanwhile, and the command goes on."""
    answers, hosts = threading.Event(), cluster("a")
    monkeypatch.setattr(preload.modules, "execute", lambda *_: answers.wait(60) and {})
    with preload.preloading(task(hosts), hosts):
        pass
    assert not answers.is_set()
    answers.set()
