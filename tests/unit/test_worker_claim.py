"""A worker's place on a host, claimed for one run: refused, continued, taken over, given back."""

import importlib.metadata
import json
import os
import platform
import re
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest


class Failed(Exception):
    """fail_json."""


class Ended(Exception):
    """exit_json."""


class Module:
    """As much of an AnsibleModule as is used; tmux knows the sessions given."""

    def __init__(self, sessions=(), check_mode=False, **params):
        self.params, self.sessions, self.check_mode = {"python": sys.executable, "needs": [], **params}, sessions, check_mode

    def get_bin_path(self, name):
        return f"/usr/bin/{name}"

    def run_command(self, argv):
        if argv[0] == self.params["python"]:
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            return done.returncode, done.stdout, done.stderr
        assert argv[:4] == ["/usr/bin/tmux", "-L", "lockstep", "has-session"]
        return (0 if argv[-1] in [f"={name}" for name in self.sessions] else 1), "", ""

    def fail_json(self, msg):
        raise Failed(msg)

    def exit_json(self, **returned):
        raise Ended(returned)


@pytest.fixture
def port():
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def place(tmp_path, port, worker_claim):
    """One worker's root and what a run asks of it."""
    root = tmp_path / "lockstep"
    path = root / "locks" / f"{port}.json"

    def module(run="new", **more):
        return Module(root=str(root), run=run, folder=str(root / "runs" / run), host="pi1", port=port, session=f"{run}-w0", **more)

    def held(run, at, session=None):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"run": run, "session": session or f"{run}-w0", "at": at}))

    def claim(*arguments, **more):
        with pytest.raises(Ended) as caught:
            worker_claim.claim(module(*arguments, **more), str(path))
        return caught.value.args[0]

    def refused(*arguments, **more):
        with pytest.raises(Failed) as caught:
            worker_claim.claim(module(*arguments, **more), str(path))
        return str(caught.value)

    return SimpleNamespace(root=root, path=path, module=module, held=held, claim=claim, refused=refused, port=port)


LONG_AGO = 1000.0


def test_a_free_place_is_taken(place):
    returned = place.claim()
    assert (returned["changed"], returned["running"], returned["newest_state"]) == (True, False, "")
    found = json.loads(place.path.read_text())
    assert (found["run"], found["session"]) == ("new", "new-w0")
    assert abs(found["at"] - time.time()) < 600
    assert [path.name for path in place.path.parent.iterdir()] == [place.path.name]
    assert (place.root / "runs" / "new" / "workers" / "pi1").is_dir()


def test_a_host_that_does_not_see_what_was_published_is_refused(place, tmp_path):
    (tmp_path / "manifest.json").touch()
    seen, missing = str(tmp_path / "manifest.json"), str(tmp_path / "trainer.zip")
    assert place.claim(needs=[seen], check_mode=True)["running"] is False
    assert place.refused(needs=[seen, missing]) == (
        f"pi1 can't read {missing}, which was published: its dfs_path is not shared with the other hosts. "
        "See what is mounted there (findmnt), then: ansible-playbook provision.yml; ansible-playbook doctor.yml"
    )
    assert not place.path.exists()


def test_check_mode_takes_nothing(place):
    place.claim(check_mode=True)
    assert not place.root.exists()


def test_a_stale_claim_is_replaced(place):
    place.held("old", LONG_AGO)
    assert place.claim()["changed"] is True
    assert json.loads(place.path.read_text())["run"] == "new"


@pytest.mark.parametrize(("at", "sessions"), [(LONG_AGO, ["old-w0"]), (time.time() + 300, [])], ids=["running", "just being started"])
def test_another_live_run_is_refused_by_its_name(at, sessions, place):
    place.held("old", at)
    assert place.refused(sessions=sessions) == (
        f"run old is training on pi1 (port {place.port}). Wait for it, stop it (ansible-playbook stop.yml -e run=old), "
        "or give the inventory other ports (worker_port)."
    )
    assert json.loads(place.path.read_text())["run"] == "old"


def test_a_run_that_was_just_started_and_has_ended_already_is_replaced(place, worker_claim):
    worker_claim.take(place.module("old"), str(place.path), None)
    assert place.refused().startswith("run old is training on pi1")
    (place.root / "runs" / "old" / "workers" / "pi1" / "exit.json").touch()
    assert place.claim()["changed"] is True
    assert json.loads(place.path.read_text())["run"] == "new"


def test_this_very_run_that_is_alive_is_continued(place):
    place.held("new", LONG_AGO)
    before = place.path.read_text()
    returned = place.claim(sessions=["new-w0"])
    assert (returned["changed"], returned["running"]) == (False, True)
    assert place.path.read_text() == before


def test_this_very_run_that_is_gone_is_claimed_anew(place):
    place.held("new", time.time() + 300)
    assert place.claim()["changed"] is True
    assert len(list(place.path.parent.iterdir())) == 1


def test_signs_of_an_earlier_launch_are_removed_and_logs_kept(place):
    folder = place.root / "runs" / "new" / "workers" / "pi1"
    folder.mkdir(parents=True)
    for name in ("exit.json", "stop", "worker.log", "metrics.jsonl"):
        (folder / name).touch()
    place.claim()
    (metrics, log) = sorted(path.name for path in folder.iterdir())
    assert log == "worker.log"
    assert re.fullmatch(r"metrics-\d+\.jsonl", metrics)


def test_a_busy_port_is_refused(place):
    with socket.socket() as server:
        server.bind(("127.0.0.1", place.port))
        server.listen()
        message = place.refused()
    assert message == f"port {place.port} on pi1 is in use by another program; end it or set another worker_port."
    assert not place.path.exists()


def test_the_port_of_this_running_worker_is_no_other_program(place):
    with socket.socket() as server:
        server.bind(("127.0.0.1", place.port))
        server.listen()
        assert place.claim(sessions=["new-w0"])["running"] is True


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_listening(address, port, worker_claim):
    assert worker_claim.listening(port) is False
    with socket.socket() as server:
        server.bind((address, port))
        server.listen()
        assert worker_claim.listening(port) is True


def test_a_full_disk_is_refused(place, worker_claim, monkeypatch):
    monkeypatch.setattr(worker_claim.shutil, "disk_usage", lambda _: SimpleNamespace(free=511 * 2**20))
    assert place.refused() == f"pi1: 511 MB free under {place.root}; at least 512 MB are needed."
    assert not place.root.exists()


@pytest.mark.parametrize("text", ["", '{"run": "ol', "\0\0\0\0", "null", "[]", '{"run": "old"}'])
def test_a_torn_claim_counts_as_none(text, tmp_path, worker_claim):
    (tmp_path / "claim.json").write_text(text)
    assert worker_claim.read(str(tmp_path / "claim.json")) is None


def test_a_whole_claim_is_read_and_a_missing_one_is_none(place, worker_claim):
    assert worker_claim.read(str(place.path)) is None
    place.held("old", 1.5)
    assert worker_claim.read(str(place.path)) == {"run": "old", "session": "old-w0", "at": 1.5}


def test_a_torn_claim_is_replaced(place):
    place.path.parent.mkdir(parents=True)
    place.path.write_text("")
    assert place.claim()["changed"] is True


def test_a_claim_without_a_folder_looks_for_no_exit_code_here(place, worker_claim, tmp_path, monkeypatch):
    (tmp_path / "exit.json").touch()
    monkeypatch.chdir(tmp_path)
    assert worker_claim.alive(place.module(), {"run": "old", "session": "old-w0", "at": time.time() + 300}) is True


def test_signs_of_an_earlier_launch_are_gone_before_the_claim_is_seen(place, worker_claim, monkeypatch):
    folder = place.root / "runs" / "new" / "workers" / "pi1"
    folder.mkdir(parents=True)
    (folder / "exit.json").touch()
    monkeypatch.setattr(worker_claim, "write", lambda *_: pytest.fail("written before") if (folder / "exit.json").exists() else None)
    place.claim()


def test_of_two_launches_on_a_free_place_the_second_is_refused_by_name(place, worker_claim):
    worker_claim.take(place.module("first"), str(place.path), None)
    with pytest.raises(Failed) as caught:
        worker_claim.take(place.module("second"), str(place.path), None)
    assert str(caught.value).startswith(f"another launch took port {place.port} on pi1 at the same moment: {{'run': 'first'")
    assert [path.name for path in place.path.parent.iterdir()] == [place.path.name]


def test_of_two_launches_that_saw_a_stale_claim_only_one_gets_it(place, worker_claim):
    place.held("old", LONG_AGO)
    stale = worker_claim.read(str(place.path))
    worker_claim.take(place.module("first"), str(place.path), stale)
    with pytest.raises(Failed):
        worker_claim.take(place.module("second"), str(place.path), stale)
    assert json.loads(place.path.read_text())["run"] == "first"


@pytest.mark.parametrize(
    ("sessions", "age", "alive"), [(["old-w0"], 1e6, True), ([], 1e6, False), ([], -300, True), (["old-w01", "xold-w0"], 1e6, False)]
)
def test_alive(sessions, age, alive, place, worker_claim):
    held = {"run": "old", "session": "old-w0", "at": time.time() - age}
    assert worker_claim.alive(place.module(sessions=sessions), held) is alive


@pytest.mark.parametrize(("holder", "changed"), [("new", True), ("old", False), (None, False)])
def test_only_the_runs_own_claim_is_given_back(holder, changed, place, worker_claim):
    if holder:
        place.held(holder, LONG_AGO)
    with pytest.raises(Ended) as caught:
        worker_claim.give_back(place.module(), str(place.path))
    assert caught.value.args[0] == {"changed": changed}
    assert place.path.exists() is (holder == "old")


def test_giving_back_in_check_mode_removes_nothing(place, worker_claim):
    place.held("new", LONG_AGO)
    with pytest.raises(Ended) as caught:
        worker_claim.give_back(place.module(check_mode=True), str(place.path))
    assert caught.value.args[0] == {"changed": True}
    assert place.path.exists()


def test_newest_state_is_the_one_with_most_steps(place, worker_claim):
    run = str(place.root / "runs" / "new")
    assert worker_claim.newest(run, "state") == ""
    folder = place.root / "runs" / "new" / "state"
    folder.mkdir(parents=True)
    for name in ("step-000000090.npz", "step-000000100.npz", "step-999999999.npz.part", ".part-zzz.npz", "zzz"):
        (folder / name).touch()
    assert worker_claim.newest(run, "state") == "step-000000100.npz"


def test_what_a_reduction_remembered_is_told_too(place):
    folder = place.root / "runs" / "new" / "workers" / "pi1" / "memory"
    folder.mkdir(parents=True)
    (folder / "step-000000100.npz").touch()
    assert place.claim(check_mode=True)["newest_memory"] == "step-000000100.npz"


def test_facts_say_what_the_records_need(place, worker_claim):
    found = worker_claim.facts(place.module())
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["packages"]["numpy"] == importlib.metadata.version("numpy")
    assert found["python"] == platform.python_version()
    assert found["cpu"]
    assert not found["cpu"].isdecimal()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('echo \'{"python": "3.10.2", "packages": {}}\'', "is Python 3.10.2; 3.11 to 3.13 are supported"),
        ('echo \'{"python": "3.12.1", "packages": {"numpy": "2"}}\'', "has no TensorFlow; install requirements/node.txt into it"),
        ("echo broken >&2; exit 1", "does not run: broken"),
    ],
)
def test_a_python_that_cannot_train_is_refused(place, worker_claim, tmp_path, script, message):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    with pytest.raises(Failed, match="pi1: worker_python=") as caught:
        worker_claim.facts(place.module(python=str(python)))
    assert message in str(caught.value)


def test_a_missing_python_is_refused_with_the_mend(place, worker_claim):
    with pytest.raises(Failed, match="worker_python=/no/python is no program; set worker_python"):
        worker_claim.facts(place.module(python="/no/python"))
