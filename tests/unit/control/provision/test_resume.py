"""What starts supervised workers again at boot: the unit, and the program that it runs, which trusts no file."""

import json
import os
import shutil
import subprocess

import pytest

from tests.unit.conftest import ROOT, load_file
from tests.unit.fake_module import Failed, Module, ended, load
from trainer.host.claims import MARK, SUPERVISED, session_command, session_name

PROGRAM = ROOT / "roles" / "recovery" / "files" / "resume.py"
resume, resume_service = load_file(PROGRAM, "resume"), load("resume_service")
USER = os.geteuid() or 65534
"""Who trains; root does not."""
NAME = session_name("my.run", 1, "/home/pi/lockstep")


class Host:
    """A worker's directory, and a tmux that notes what it is asked."""

    def __init__(self, root):
        self.root, self.folder = root, root / "runs" / "my.run" / "workers" / "pi 1"
        self.shared, self.ran, self.live = root / "shared", [], []
        self.folder.mkdir(parents=True)
        (self.shared / "code").mkdir(parents=True)
        (self.folder / "run_worker.sh").write_text("exit\n")
        self.asks(resume.session(NAME, str(self.folder)))

    def asks(self, words):
        self.write(json.dumps({"history": {}, "session": words}))

    def write(self, text):
        (self.folder / SUPERVISED).write_text(text)
        for path in (self.root, *self.root.rglob("*")):
            os.chown(path, USER, -1, follow_symlinks=False)

    def tmux(self, argv, **_):
        self.ran.append(argv)
        name = argv[-1].lstrip("=") if "has-session" in argv else argv[argv.index("-s") + 1]
        code = int(name not in self.live)
        if "new-session" in argv:
            self.live.append(name)
            code = 0
        return subprocess.CompletedProcess(argv, code, "", "")

    def boot(self, wait=0.0):
        return resume.main(str(self.root), str(self.shared), wait)


@pytest.fixture
def host(tmp_path, monkeypatch):
    made = Host(tmp_path / "lock step")
    monkeypatch.setattr(resume.os, "geteuid", lambda: USER)
    monkeypatch.setattr(resume.subprocess, "run", made.tmux)
    return made


def started(host):
    return [argv for argv in host.ran if "new-session" in argv]


def test_a_supervisor_that_was_there_is_started_once(host, capsys):
    wanted = ["tmux", "-L", "lockstep", "new-session", "-d", "-s", NAME, "-c", str(host.folder), "bash", "run_worker.sh"]
    assert (host.boot(), host.boot()) == (0, 0)
    assert started(host) == [wanted]
    assert capsys.readouterr().out.splitlines() == [f"{host.folder}: session {NAME} is started", f"{host.folder}: session {NAME} runs"]


def test_the_command_is_the_one_that_supervisors_write():
    """And those that wait for their turn."""
    assert resume.session("a-w0", "/srv/a") == session_command("a-w0", "/srv/a")
    assert resume.FILE == SUPERVISED
    assert resume.ENDED[0] == MARK


@pytest.mark.parametrize("name", [MARK, "exit.json"])
def test_stopped_or_ended_worker_is_not_resumed(name, host):
    (host.folder / name).touch()
    assert host.boot() == 0
    assert host.ran == []


def test_a_host_that_trained_nothing_waits_for_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(resume.os, "geteuid", lambda: USER)
    assert resume.main(str(tmp_path / "none"), str(tmp_path / "shared"), 600) == 0


def test_without_the_shared_folder_nothing_is_started(host, capsys):
    (host.shared / "code").rmdir()
    assert host.boot() == 1
    assert started(host) == []
    assert "is not there after 0 s; nothing is started" in capsys.readouterr().err


def test_never_as_root(host, monkeypatch, capsys):
    monkeypatch.setattr(resume.os, "geteuid", lambda: 0)
    assert host.boot() == 1
    assert host.ran == []
    assert "never as root" in capsys.readouterr().err


def evil(words, **places):
    changed = list(words)
    for place, word in places.items():
        changed[int(place[1:])] = word
    return changed


@pytest.mark.parametrize(
    "words",
    [
        lambda words, host: ["rm", "-rf", "/"],
        lambda words, host: "tmux",
        lambda words, host: [],
        lambda words, host: {},
        lambda words, host: [1] * len(words),
        lambda words, host: evil(words, _0="/tmp/tmux"),
        lambda words, host: evil(words, _2="other"),
        lambda words, host: evil(words, _6="-x"),
        lambda words, host: evil(words, _6="a;b-w0"),
        lambda words, host: evil(words, _6="=a-w0"),
        lambda words, host: evil(words, _8="/tmp"),
        lambda words, host: evil(words, _8=str(host.root)),
        lambda words, host: evil(words, _9="sh"),
        lambda words, host: evil(words, _10="/tmp/run_worker.sh"),
        lambda words, host: [*words, "; rm -rf ~"],
        lambda words, host: [*words, "-c"],
    ],
)
def test_any_other_command_is_refused(words, host, capsys):
    host.asks(words(resume.session(NAME, str(host.folder)), host))
    assert host.boot() == 0
    assert host.ran == []
    assert "not started: supervisor.json " in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", "[" * 100_000, '{"session": ' + "[" * 50_000, "x" * 70_000])
def test_a_torn_or_huge_file_is_refused(text, host, capsys):
    host.write(text)
    assert host.boot() == 0
    assert host.ran == []
    assert "not started: supervisor.json " in capsys.readouterr().err


def link(path, target):
    path.unlink()
    path.symlink_to(target)


def folder_link(host):
    away = host.root / "away"
    host.folder.rename(away)
    host.folder.symlink_to(away)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda host: os.chown(host.folder / SUPERVISED, USER + 1, -1), "belongs to another user"),
        (lambda host: os.chown(host.folder / "run_worker.sh", USER + 1, -1), "belongs to another user"),
        (lambda host: os.chown(host.folder, USER + 1, -1), "belongs to another user"),
        (lambda host: (host.folder / SUPERVISED).chmod(0o666), "others may write it"),
        (lambda host: (host.folder / "run_worker.sh").chmod(0o770), "others may write it"),
        (lambda host: host.folder.chmod(0o777), "others may write it"),
        (lambda host: link(host.folder / SUPERVISED, host.shared), "symbolic link"),
        (lambda host: link(host.folder / "run_worker.sh", "/bin/true"), "symbolic link"),
        (folder_link, "a link leads to it"),
        (lambda host: (host.folder / "run_worker.sh").unlink(), "No such file"),
        (
            lambda host: (
                (host.folder / SUPERVISED).unlink(),
                os.mkfifo(host.folder / SUPERVISED),
                os.chown(host.folder / SUPERVISED, USER, -1),
            ),
            "is no file",
        ),
    ],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_others_could_have_written_is_refused(spoil, words, host, capsys):
    spoil(host)
    assert host.boot() == 0
    assert host.ran == []
    assert words in capsys.readouterr().err


# --- the unit


@pytest.fixture
def unit(tmp_path, monkeypatch):
    """The module on a host with systemd; its worker's directory belongs to a user of this machine."""
    places = {"SYSTEMD": "run", "PROGRAM": "lib/lockstep/resume.py", "UNIT": "lockstep-resume.service"}
    for name, place in places.items():
        monkeypatch.setattr(resume_service, name, str(tmp_path / place))
    (tmp_path / "run").mkdir()
    (tmp_path / "lib").mkdir()
    monkeypatch.setattr(resume_service._Service, "_owner", lambda _: "pi")
    enabled = []
    answers = {
        "systemctl is-enabled": lambda _: (0 if enabled else 1, "", ""),
        "systemctl enable": lambda _: (enabled.append(1), (0, "", ""))[1],
        "systemctl disable": lambda _: (enabled.clear(), (0, "", ""))[1],
    }

    def module(check_mode=False, **changed):
        given = {"program": "print()\n", "root": "/home/pi/lock step", "shared": "/mnt/50%", "state": "present"} | changed
        return Module(answers, check_mode, **given)

    return module


def test_unit_is_made_once_and_removed_without_trace(unit, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    assert ended(resume_service, unit(check_mode=True)) == {"changed": True, "resumes": "resumes"}
    assert sorted(tmp_path.rglob("*")) == before
    assert ended(resume_service, unit())["changed"] is True
    assert (tmp_path / "lib/lockstep/resume.py").read_text() == "print()\n"
    assert (tmp_path / "lockstep-resume.service").stat().st_mode & 0o777 == 0o644
    assert ended(resume_service, unit())["changed"] is False
    assert ended(resume_service, unit(program="pass\n"))["changed"] is True
    assert ended(resume_service, unit(check_mode=True, state="absent"))["changed"] is True
    assert ended(resume_service, unit(state="absent"))["changed"] is True
    assert sorted(tmp_path.rglob("*")) == before
    assert ended(resume_service, unit(state="absent"))["changed"] is False


def test_host_without_systemd_or_of_root_stays_alone(unit, tmp_path, monkeypatch):
    monkeypatch.setattr(resume_service._Service, "_owner", lambda _: "root")
    assert ended(resume_service, unit()) == {"changed": False, "resumes": "no: root trains"}
    (tmp_path / "run").rmdir()
    assert ended(resume_service, unit()) == {"changed": False, "resumes": "no: systemd does not run"}
    assert not (tmp_path / "lockstep-resume.service").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_unit_runs_as_owner_of_workers_directory(tmp_path):
    os.chown(tmp_path, 65534, -1)
    module = Module(root=str(tmp_path / "not" / "there yet"))
    assert resume_service._Service(module)._owner() == "nobody"
    os.chown(tmp_path, 54321, -1)
    with pytest.raises(Failed, match="belongs to user number 54321"):
        resume_service._Service(module)._owner()


def test_no_word_of_path_means_anything_to_systemd(unit, tmp_path):
    ended(resume_service, unit(root='a"b\\c$HOME%h'))
    line = next(line for line in (tmp_path / "lockstep-resume.service").read_text().splitlines() if line.startswith("ExecStart="))
    assert line.endswith('" "-I" "' + f"{tmp_path}/lib/lockstep/resume.py" + '" "a\\"b\\\\c$$HOME%%h" "/mnt/50%%"')


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
@pytest.mark.parametrize("known", [True, False])
def test_systemd_understands_the_unit(known, unit, tmp_path, monkeypatch):
    monkeypatch.setattr(resume_service._Service, "_owner", lambda _: "daemon")
    if not known:
        monkeypatch.setattr(resume_service, "UNIT_TEXT", resume_service.UNIT_TEXT.replace("TasksMax", "TaskMax"))
    ended(resume_service, unit(root="/tmp", shared="/tmp"))
    path = tmp_path / "lockstep-resume.service"
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, check=False)
    assert ("lockstep-resume" not in done.stderr) is known, done.stderr
