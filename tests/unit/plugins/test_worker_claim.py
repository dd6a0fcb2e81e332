"""A worker's claim on a host: polled, taken with the worker started under it, released."""

import errno
import getpass
import importlib.metadata
import json
import os
import platform
import re
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from control.remote import modules
from tests.unit.conftest import ROOT, load_file
from tests.unit.fake_module import Module, ended, failed
from tests.unit.samples import flip_a_bit, write_state
from trainer.host import claims


class Host(Module):
    """An AnsibleModule on a host whose tmux knows the sessions given, and those that were started."""

    def __init__(self, sessions=(), check_mode=False, **params):
        usual = {"python": sys.executable, "needs": [], "need_mb": 512, "files": [], "launch": "one", "ticket": "", "grace": 0}
        usual |= {"session": None, "direct_port": None, "server_port": None}
        super().__init__(check_mode=check_mode, **{**usual, **params})
        self.sessions = sessions

    def run_command(self, argv):
        if argv[0] == self.params["python"]:
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            return done.returncode, done.stdout, done.stderr
        assert argv[0] in ("tmux", "/usr/bin/tmux")
        assert argv[1:3] == ["-L", "lockstep"]
        return getattr(self, argv[3].replace("-", "_"))(argv[4:])

    def has_session(self, words):
        return (0 if words[-1] in [f"={name}" for name in self.sessions] else 1), "", ""

    def new_session(self, words):
        assert words[-2:] == ["bash", "run_worker.sh"]
        self.sessions.append(words[words.index("-s") + 1])
        return 0, "", ""

    def list_panes(self, _):
        return 0, "", ""

    def kill_session(self, words):
        self.sessions.remove(words[-1].lstrip("="))
        return 0, "", ""


TICKET = "1800000000000-00ff00ff"


@pytest.fixture
def place(tmp_path, port, worker_claim):
    """One worker's root, its host's sessions, and what a run asks of it."""
    root = tmp_path / "lockstep"
    path = root / "locks" / f"{port}.json"
    sessions: list[str] = []

    def module(run="new", **more):
        usual = {"sessions": sessions, "session": f"{run}-w0"}
        return Host(root=str(root), run=run, folder=str(root / "runs" / run), host="pi1", **{"port": port, **usual, **more})

    def held(run, launch="zero", number=port):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f"{number}.json").write_text(json.dumps({"run": run, "session": f"{run}-w0", "launch": launch}))

    def asked(state, *arguments, **more):
        return ended(worker_claim, module(*arguments, state=state, **more))

    def refused(state, *arguments, **more):
        return failed(worker_claim, module(*arguments, state=state, **more))

    return SimpleNamespace(root=root, path=path, module=module, held=held, asked=asked, refused=refused, port=port, sessions=sessions)


def test_a_look_and_a_check_change_nothing(place):
    returned = place.asked("query")
    assert (returned["changed"], returned["running"], returned["holder"], returned["newest_state"]) == (False, False, None, "")
    assert place.asked("present", check_mode=True) == {"changed": True}
    assert not place.root.exists()
    assert place.sessions == []
    place.held("new", "one")
    assert place.asked("absent", check_mode=True) == {"changed": True}
    assert place.path.exists()


def test_start_leaves_claim_files_and_session(place):
    script = place.root / "runs" / "new" / "workers" / "pi1" / "run_worker.sh"
    assert place.asked("present", files=[{"path": str(script), "content": "true", "mode": "0755"}]) == {"changed": True}
    assert json.loads(place.path.read_text()) == {"run": "new", "launch": "one", "session": "new-w0", "folder": str(script.parent)}
    assert place.sessions == ["new-w0"]
    assert (script.read_text(), script.stat().st_mode & 0o777) == ("true", 0o755)
    assert place.asked("query")["running"] is True


def test_a_hanging_launch_is_named_with_its_end(place, worker_claim, monkeypatch):
    """One whose tmux does not answer would otherwise keep all others waiting without a word."""
    monkeypatch.setattr(worker_claim, "PATIENCE_S", 0.0)
    place.root.mkdir()
    with claims.locked(str(place.root)):
        assert place.refused("present") == (
            f"pi1: process {os.getpid()} has been starting or ending a worker for 0 s. "
            "Fix: the same command again; if that process does not end: kill it"
        )
    assert (place.root / ".lock").read_text() == "", "a reused process id would name another process"
    assert place.asked("present") == {"changed": True}


def test_on_a_full_disk_a_run_is_stopped(place):
    place.held("new")
    (place.root / ".lock").symlink_to("/dev/full")
    assert place.asked("absent", launch="")["changed"] is True
    assert not place.path.exists()


def test_host_that_misses_the_publication_is_refused(place, tmp_path, monkeypatch, worker_claim):
    """What another user published is distinguished from what is not shared."""
    (tmp_path / "manifest.json").touch()
    seen, missing = str(tmp_path / "manifest.json"), str(tmp_path / "trainer.zip")
    assert place.asked("query", needs=[seen])["running"] is False
    assert place.refused("query", needs=[seen, missing]) == (
        f"pi1 can't read {missing}, which was published: its dfs_path is not shared with the other hosts. "
        "See what is mounted there (findmnt), then: ansible-playbook provision.yml; ansible-playbook doctor.yml"
    )

    def refuse(path, mode="r", **_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(worker_claim, "open", refuse, raising=False)
    assert place.refused("query", needs=[seen]).startswith(f"pi1 may not read {seen}: it was published by another user than the one who ")


@pytest.mark.parametrize("sessions", [[], ["old-w01"], ["xold-w0"]])
def test_claim_without_its_session_is_void_at_once(sessions, place):
    """As Ctrl-C leaves it between the claim and the start; no time has to pass. A session of a similar name is another."""
    place.held("old")
    place.sessions += sessions
    assert place.asked("query")["holder"] is None
    place.asked("present")
    assert json.loads(place.path.read_text())["run"] == "new"


def test_start_that_fails_leaves_nothing_in_way(place, worker_claim):
    module = place.module(state="present")
    module.new_session = lambda _: (1, "", "no server")
    assert failed(worker_claim, module) == "pi1: tmux could not start session new-w0: no server"
    assert place.asked("present", "other") == {"changed": True}


def test_another_live_run_is_named_with_its_session(place):
    place.held("old")
    place.sessions.append("old-w0")
    assert place.asked("query")["holder"] == {"kind": "port", "number": place.port, "run": "old", "session": "old-w0"}
    message = place.refused("present")
    assert message == f"port {place.port} on pi1 was taken by run old at the same moment. Fix: the same command again"
    assert json.loads(place.path.read_text())["run"] == "old"
    assert place.sessions == ["old-w0"]


def test_running_run_is_told_and_not_restarted(place):
    place.asked("present")
    returned = place.asked("query")
    assert (returned["changed"], returned["running"], returned["holder"]) == (False, True, None)
    assert place.refused("present", launch="two").startswith("pi1: another command has just launched run new. Fix: watch that one")
    assert place.sessions == ["new-w0"]


def test_earlier_signs_are_removed_and_logs_kept(place):
    folder = place.root / "runs" / "new" / "workers" / "pi1"
    folder.mkdir(parents=True)
    for name in ("exit.json", "stop", "worker.log", "metrics.jsonl"):
        (folder / name).touch()
    place.asked("present")
    (metrics, log) = sorted(path.name for path in folder.iterdir())
    assert log == "worker.log"
    assert re.fullmatch(r"metrics-\d+\.jsonl", metrics)


def test_a_busy_port_names_its_holder(place):
    with socket.socket() as server:
        server.bind(("127.0.0.1", place.port))
        server.listen()
        holder, message = place.asked("query")["holder"], place.refused("present")
        assert place.asked("query", sessions=["new-w0"])["holder"] is None
        direct = place.asked("query", port=1, direct_port=place.port)["holder"]
    assert {**holder, "kind": "direct_port"} == direct
    assert holder["process"].endswith(f"(pid {os.getpid()}, user {getpass.getuser()})")
    assert f"was taken by {holder['process']} at the same moment" in message
    assert not place.path.exists()


def test_a_full_disk_is_refused(place, worker_claim, monkeypatch):
    monkeypatch.setattr(worker_claim.shutil, "disk_usage", lambda _: SimpleNamespace(free=511 * 2**20))
    assert place.refused("query") == (
        f"pi1: 511 MB free under {place.root}; at least 512 MB are needed. Remove old runs "
        "(ansible-playbook playbooks/delete_run.yml -e run=NAME), or set worker_root to a larger disk."
    )
    assert not place.root.exists()


MARK = {"run": "old", "session": "old-w0", "launch": "zero"}


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        os.mkdir,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_text('{"run": "ol'),
        lambda path: path.write_text("\0\0\0\0"),
        lambda path: path.write_text("null"),
    ],
    ids=["pipe", "folder", "link", "torn", "zeros", "null"],
)
def test_what_is_no_file_is_none(make, place):
    """And nothing waits for it."""
    place.path.parent.mkdir(parents=True)
    make(place.path)
    assert place.asked("query")["holder"] is None


@pytest.mark.parametrize(
    "claim",
    [
        {**MARK, "run": "old; id"},
        {**MARK, "run": "$(id)"},
        {**MARK, "run": "../old", "session": "../old-w0"},
        {**MARK, "run": "old\n"},
        {**MARK, "run": "{{ x }}"},
        {**MARK, "run": "x" * 65, "session": "x" * 65 + "-w0"},
        {**MARK, "run": ["old"]},
        {**MARK, "session": "old-w0\0"},
        {**MARK, "session": "old-w0 -t other"},
        {**MARK, "session": "other-w0"},
        {**MARK, "session": {"a": 1}},
        {**MARK, "launch": 7},
        {**MARK, "folder": ["/tmp"]},
        {**MARK, "more": "x" * 5000},
    ],
)
def test_a_claim_that_no_module_writes_is_none(claim, place):
    """Nothing in it is named to anybody, and no session that it names is ended."""
    place.path.parent.mkdir(parents=True)
    place.path.write_text(json.dumps(claim))
    place.sessions += ["old-w0", "other-w0"]
    assert place.asked("query")["holder"] is None
    assert place.asked("absent", "old", session=None, launch="zero") == {"changed": False, "ended": "absent"}
    assert place.sessions == ["old-w0", "other-w0"]
    place.path.write_text(json.dumps(MARK))
    assert place.asked("query")["holder"]["run"] == "old"


def test_root_that_every_user_may_write_is_refused(place):
    place.root.mkdir()
    place.root.chmod(0o777)
    assert place.refused("query") == (
        f"pi1: every user may write worker_root={place.root}, and so decide what the worker runs. "
        f"Fix: on it, chmod o-w {place.root}, or set worker_root to a folder of the user who trains"
    )
    place.root.chmod(0o775)
    assert place.asked("query")["running"] is False


def test_launch_that_is_held_is_one_with_session(place):
    assert place.asked("held") == {"changed": False, "held": False}
    place.asked("present")
    assert place.asked("held")["held"] is True
    assert place.asked("held", launch="two")["held"] is False
    place.sessions.clear()
    assert place.asked("held")["held"] is False


def test_ending_run_takes_its_session_and_claims(place):
    place.asked("present")
    place.held("new", number=7)
    place.held("old", number=8)
    place.sessions.append("old-w0")

    assert place.asked("absent", launch="") == {"changed": True, "ended": "killed"}
    assert place.sessions == ["old-w0"]
    assert [path.name for path in place.path.parent.iterdir()] == ["8.json"]
    assert place.asked("absent", launch="") == {"changed": False, "ended": "absent"}
    place.sessions.append("new-w0")
    assert place.asked("absent", launch="")["ended"] == "killed", "a session without a claim ends with its run"
    assert place.sessions == ["old-w0"]


def test_taking_back_a_launch_spares_another(place):
    place.asked("present", launch="two")
    assert place.asked("absent", launch="one") == {"changed": False, "ended": "absent"}
    assert place.sessions == ["new-w0"]
    assert place.path.exists()


def test_launch_taken_back_cannot_start(place):
    """What was on its way to a host when the command ended may arrive after it was taken back."""
    place.asked("absent", launch="one")
    assert place.refused("present", launch="one") == "pi1: this launch of run new was taken back meanwhile"
    assert place.refused("present", launch="one", ticket=TICKET) == "pi1: this launch of run new was taken back meanwhile"
    assert place.sessions == []
    assert not (place.root / "queue").exists()
    old = place.path.with_name("one.revoked")
    os.utime(old, (0, 0))
    assert place.asked("present", launch="two") == {"changed": True}
    assert not old.exists()


def test_of_launches_at_same_moment_one_gets_port(place, tmp_path, port):
    """Real processes: what each sees of tmux is a file that all share."""
    tmux, known = tmp_path / "tmux", tmp_path / "sessions"
    asked, begun = f'has-session) grep -qxF -- "${{5#=}}" {known}', f'new-session) sleep 0.2; echo "$6" >> {known}'
    tmux.write_text(f'#!/bin/sh\ncase "$3" in {asked};; {begun};; esac\n')
    tmux.chmod(0o755)
    (tmp_path / "sessions").touch()

    def launch(number):
        params = {"root": str(place.root), "run": f"run{number}", "folder": str(tmp_path / f"run{number}"), "host": "pi1", "port": port}
        sent = modules._payload("worker_claim", {**params, "session": f"run{number}-w0", "launch": str(number)}, "mark:", False)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", modules.LOADER], env={**os.environ, "PATH": f"{tmp_path}:/bin:/usr/bin"}, **pipes)
        process.stdin.write(sent)
        process.stdin.close()
        return process

    answers = [process.stdout.read().decode() for process in [launch(number) for number in range(6)]]
    assert sum('"changed": true' in answer for answer in answers) == 1
    assert sum(f"port {port} on pi1 was taken by run run" in answer for answer in answers) == 5
    assert len((tmp_path / "sessions").read_text().split()) == 1


@pytest.mark.parametrize(("kind", "inside"), [("state", "."), ("memory", "workers/pi1")])
def test_newest_state_has_most_steps_and_is_whole(kind, inside, place):
    """And what a reduction remembered."""
    folder = place.root / "runs" / "new" / inside / kind
    for name in ("step-000000080.npz", "step-000000090.npz", "step-000000100.npz"):
        write_state(folder / name)
    for name in ("step-999999999.npz.part", ".part-zzz.npz", "zzz"):
        (folder / name).touch()
    assert place.asked("query", check_mode=True)[f"newest_{kind}"] == "step-000000100.npz"
    flip_a_bit(folder / "step-000000100.npz")
    (folder / "step-000000090.npz").write_bytes(b"")
    returned = place.asked("query", check_mode=True)
    assert returned[f"newest_{kind}"] == "step-000000080.npz"
    assert [(one["kind"], one["name"]) for one in returned["damaged"]] == [(kind, "step-000000100.npz"), (kind, "step-000000090.npz")]
    assert returned["damaged"][0]["reason"] == "its digest differs"
    assert len(list(folder.glob("step-*.npz"))) == 3
    assert place.asked("query")["damaged"] == returned["damaged"]
    assert [path.name for path in folder.glob("step-*.npz")] == ["step-000000080.npz"]
    assert len(list((folder.parent / "damaged").glob(f"{kind}-step-*.npz"))) == 2
    assert place.asked("query", check_mode=True)["damaged"] == []


def test_facts_say_what_the_records_need(place):
    actual = place.asked("query")["facts"]
    assert actual["cores"] == len(os.sched_getaffinity(0))
    assert actual["packages"]["numpy"] == importlib.metadata.version("numpy")
    assert actual["python"] == platform.python_version()
    assert actual["cpu"]
    assert not actual["cpu"].isdecimal()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('echo \'{"python": "3.10.2", "packages": {}}\'', "is Python 3.10.2; 3.11 to 3.13 are supported"),
        ('echo \'{"python": "3.12.1", "packages": {"numpy": "2"}}\'', "has no TensorFlow; install requirements/node.txt into it"),
        ("echo broken >&2; exit 1", "does not run: broken"),
        (None, "is missing; set worker_python"),
    ],
)
def test_a_python_that_cannot_train_is_refused(place, tmp_path, script, message):
    python = tmp_path / "python"
    if script:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    assert f"pi1: worker_python={python} {message}" in place.refused("query", python=str(python))


def test_run_is_closed_to_other_users(place):
    """Also one of an earlier version."""
    folder = place.root / "runs" / "new"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    place.asked("present")
    modes = {path.name: path.stat().st_mode & 0o777 for path in [folder, folder / "workers" / "pi1", *(place.root / "locks").iterdir()]}
    assert list(modes.values()) == [0o750, 0o750, 0o640]


def test_ticket_takes_a_place_in_the_queue(place):
    place.held("old")
    place.sessions.append("old-w0")
    assert place.asked("query", ticket=TICKET)["holder"]["run"] == "old"
    assert place.asked("present", ticket=TICKET) == {"changed": True}
    (entry,) = (place.root / "queue").iterdir()
    assert entry.name == f"{TICKET}-{place.port}.json"
    assert json.loads(entry.read_text())["session"] == "new-w0"
    assert json.loads(place.path.read_text())["run"] == "old"
    assert place.asked("held")["held"] is True
    assert place.asked("query")["running"] is True
    assert place.asked("absent", launch="") == {"changed": True, "ended": "killed"}
    assert not entry.exists()
    assert place.sessions == ["old-w0"]
    assert json.loads(place.path.read_text())["run"] == "old"


def test_earlier_claim_is_not_revived_by_waiting(place):
    """Others would wait for a run that waits for them."""
    place.held("new")
    place.asked("present", ticket=TICKET)
    assert not place.path.exists()


def test_place_that_nobody_takes_any_more_is_removed(place):
    queue = place.root / "queue"
    queue.mkdir(parents=True)
    for number, run in enumerate(("gone", "returns", "waits")):
        folder = place.root / "runs" / run
        folder.mkdir(parents=True)
        claim = {"run": run, "session": f"{run}-w0", "launch": "zero", "folder": str(folder)}
        (queue / f"{TICKET}-{number}.json").write_text(json.dumps(claim))
    (place.root / "runs" / "returns" / "supervisor.json").touch()
    place.sessions.append("waits-w0")
    place.asked("present", ticket=TICKET)
    assert sorted(json.loads(path.read_text())["run"] for path in queue.iterdir()) == ["new", "returns", "waits"]


@pytest.mark.parametrize("restarted", [True, False])
def test_jobs_are_those_whose_sessions_exist(restarted, tmp_path, monkeypatch):
    module = load_file(ROOT / "plugins" / "modules" / "worker_jobs.py", "worker_jobs")
    locks = {"12345.json": "runs", "12346.json": "over", "12348.json": "back", "12347.json": "next"}
    queue = {f"{TICKET}-12347.json": "next", f"0{TICKET[1:]}-12345.json": "gone", f"2{TICKET[1:]}-12345.json": "last"}
    for folder, names in (("locks", locks), ("queue", queue)):
        (tmp_path / folder).mkdir()
        for name, run in names.items():
            (tmp_path / folder / name).write_text(json.dumps({"run": run, "session": f"{run}-w0", "folder": str(tmp_path / run)}))
    # If its host has just restarted, its supervisor comes back.
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "supervisor.json").touch()
    monkeypatch.setattr(module, "_up_s", lambda: 20 if restarted else 20_000)
    monkeypatch.setattr(module.claims, "sessions", lambda: {"runs-w0", "next-w0", "last-w0"})
    returned = {}
    monkeypatch.setattr(module, "AnsibleModule", lambda **_: SimpleNamespace(params={"root": str(tmp_path)}, exit_json=returned.update))
    module.main()

    def job(run, state, ticket=""):
        return {"run": run, "state": state, "session": f"{run}-w0", "ticket": ticket}

    running = [job("runs", "running"), *([job("back", "running")] if restarted else [])]
    assert returned == {"changed": False, "jobs": [*running, job("next", "queued", TICKET), job("last", "queued", f"2{TICKET[1:]}")]}
