"""Set-up: which machines are refused and how, and when `.venv` has to be made anew."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest


@pytest.fixture
def machine(install, monkeypatch):
    """Pretend to be a machine: `machine(system="Darwin", platform="darwin")`."""

    def pretend(system="Linux", platform="linux", machine="x86_64", python=(3, 11, 7), tmux="/usr/bin/tmux", maxsize=2**63 - 1):
        fake = SimpleNamespace(platform=platform, version_info=python, version="3.x", stderr=sys.stderr, maxsize=maxsize)
        monkeypatch.setattr(install, "sys", fake)
        version = ".".join(map(str, python))
        fake = SimpleNamespace(machine=lambda: machine, system=lambda: system, python_version=lambda: version)
        monkeypatch.setattr(install, "platform", fake)
        monkeypatch.setattr(install, "shutil", SimpleNamespace(which=lambda name: tmux if name == "tmux" else None))

    return pretend


@pytest.fixture
def project(install, monkeypatch, tmp_path):
    """A project of its own, with lock files and nothing set up."""
    (tmp_path / "requirements").mkdir()
    for name in ("node", "control", "dev"):
        (tmp_path / "requirements" / f"{name}.txt").write_text(f"{name}==1\n")
    monkeypatch.setattr(install, "ROOT", tmp_path)
    monkeypatch.setattr(install, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(install, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    (tmp_path / ".venv").mkdir()
    return tmp_path


NO_BUILD = "{} is not supported: TensorFlow has no build for it; use 64-bit Linux (Debian 12, Ubuntu, Raspberry Pi OS) on x86_64 or aarch64"
BITS = "a 32-bit Python is not supported: TensorFlow has no build for it; use a 64-bit Python on 64-bit Linux"
VERSION = "Python {} is not supported; use 3.11 to 3.13, for example: make setup PYTHON=python3.12"


@pytest.mark.parametrize(
    ("pretended", "message"),
    [
        ({"machine": "x86_64", "python": (3, 11, 0)}, None),
        ({"machine": "aarch64", "python": (3, 13, 9)}, None),
        ({"system": "Darwin", "platform": "darwin", "machine": "arm64"}, NO_BUILD.format("Darwin on arm64")),
        ({"machine": "armv7l"}, NO_BUILD.format("Linux on armv7l")),
        ({"system": "Windows", "platform": "win32", "machine": "AMD64"}, NO_BUILD.format("Windows on AMD64")),
        ({"python": (3, 10, 12)}, VERSION.format("3.10.12")),
        ({"python": (3, 14, 0)}, VERSION.format("3.14.0")),
        ({"python": (2, 7, 18)}, VERSION.format("2.7.18")),
        pytest.param({"machine": "aarch64", "maxsize": 2**31 - 1}, BITS, id="a 32-bit Python on a 64-bit kernel"),
        ({"tmux": None}, "tmux is missing; install it: sudo apt-get install tmux"),
    ],
)
def test_machines_that_cannot_train_are_refused(pretended, message, install, machine):
    machine(**pretended)
    assert install.unsupported() == message


def test_refusal_is_one_line_and_exit_code(install, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["install.py", "control"])
    monkeypatch.setattr(install, "unsupported", lambda: "no good")
    monkeypatch.setattr(install, "install", lambda group: pytest.fail("went on"))
    assert install.main() == 1
    assert capsys.readouterr().err == "error: no good\n"


def test_state_follows_the_groups_locks(install, project, monkeypatch):
    """And Python, and the project's place."""
    before = {group: install.state(group) for group in ("control", "dev")}
    assert install.state("control") == before["control"]
    (project / "requirements" / "dev.txt").write_text("other==2\n")
    assert install.state("control") == before["control"]
    assert install.state("dev") != before["dev"]
    monkeypatch.setattr(install, "sys", SimpleNamespace(version="another"))
    assert install.state("control") != before["control"]
    monkeypatch.undo()
    assert install.state("control") != before["control"]


class SetsUp(Exception):
    """Set-up begins."""


@pytest.fixture
def begins(install, monkeypatch):
    def find_uv():
        raise SetsUp

    monkeypatch.setattr(install, "find_uv", find_uv)


def test_fresh_project_is_set_up(install, project, begins, capsys):
    with pytest.raises(SetsUp):
        install.install("control")
    assert capsys.readouterr().out == "setting up .venv (control) ...\n"


@pytest.mark.parametrize(("stamped", "group"), [("control", "control"), ("dev", "dev"), ("dev", "control")])
def test_nothing_is_done_when_all_is_in_place(stamped, group, install, project, begins, capsys):
    install.stamp(stamped).write_text(install.state(stamped))
    assert install.install(group) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("group", "changed"), [("dev", "mine"), ("control", "node"), ("control", "control")])
def test_another_group_or_lock_sets_up_again(group, changed, install, project, begins):
    install.stamp("control").write_text(install.state("control"))
    (project / "requirements" / f"{changed}.txt").write_text("other==2\n")
    with pytest.raises(SetsUp):
        install.install(group)


@pytest.mark.parametrize("uv", [None, "/usr/bin/uv"])
def test_set_up_runs_one_locked_install(uv, install, project, monkeypatch):
    """And compiles what is imported often, and leaves its stamp."""
    ran = []
    packages = project / ".venv" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    monkeypatch.delenv("WHEELS", raising=False)
    monkeypatch.setattr(install, "find_uv", lambda: uv)
    monkeypatch.setattr(install, "pip", lambda: ["python", "-m", "pip"])
    monkeypatch.setattr(install, "run", lambda command, *arguments: ran.append([*command, *map(str, arguments)]))
    (packages / "some.py").write_text("some = 1\n")
    (packages / "ansible_collections").mkdir()
    (packages / "ansible_collections" / "rare.py").write_text("rare = 1\n")
    monkeypatch.setattr(install, "PYTHON", sys.executable)
    assert install.install("control") == 0
    assert len(ran) == 1
    assert len(list(packages.rglob("some.*.pyc"))) == 1
    assert not list(packages.rglob("rare.*.pyc"))
    assert ran[0][0] == (uv or "python")
    assert "--require-hashes" in ran[0]
    assert ran[0][-1] == str(project / "requirements" / "control.txt")
    assert (packages / "lockstep.pth").read_text() == f"{project}\n"
    (project / "trainer/keras_fit/site").mkdir(parents=True)
    (project / "trainer/keras_fit/site/lockstep.py").write_text("print(__name__, __file__)\n")
    found = subprocess.check_output([sys.executable, "-c", "import lockstep"], env={"PYTHONPATH": str(packages)}, text=True)
    assert found == f"lockstep {project}/trainer/keras_fit/site/lockstep.py\n"
    assert install.stamp("control").read_text() == install.state("control")


def test_a_command_that_fails_ends_the_set_up(install):
    with pytest.raises(subprocess.CalledProcessError):
        install.run([sys.executable, "-c", "raise SystemExit(3)"])


def test_a_failed_set_up_leaves_no_stamp(install, project, monkeypatch, capsys):
    def fail(*_):
        raise subprocess.CalledProcessError(2, ["uv", "pip", "install", "--quiet", "secret"])

    monkeypatch.setattr(install, "unsupported", lambda: None)
    monkeypatch.setattr(install, "find_uv", lambda: "uv")
    monkeypatch.setattr(install, "run", fail)
    monkeypatch.setattr(sys, "argv", ["install.py", "control"])
    assert install.main() == 1
    assert capsys.readouterr().err == "error: set-up failed: `uv pip install --quiet ...` ended with exit code 2 (its output is above)\n"
    assert not install.stamp("control").exists()


def test_wheels_are_taken_from_folder_and_nowhere_else(install, monkeypatch, tmp_path):
    monkeypatch.delenv("WHEELS", raising=False)
    assert install.offline() == []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "WHEELS", "wheels")
    assert install.offline() == ["--no-index", "--find-links", str(tmp_path / "wheels")]


@pytest.mark.parametrize("group", ["control", "dev"])
def test_the_projects_own_locks_exist_and_have_hashes(group, install):
    for name in install.LOCKS[group]:
        assert "--hash=sha256:" in (install.ROOT / "requirements" / f"{name}.txt").read_text()


def test_own_file_is_added_without_changing_the_lock(install, project, monkeypatch, capsys):
    ran = []

    def run(command, *arguments):
        constraints = arguments[list(arguments).index("--constraint") + 1]
        ran.append((command, list(map(str, arguments)), constraints.read_text()))

    (project / "requirements" / "node.txt").write_text("one==1.0 ; python_version < '4' \\\n    --hash=sha256:00\n    # via x\n")
    (project / "mine.txt").write_text("photos\n")
    monkeypatch.setattr(install, "find_uv", lambda: "uv")
    monkeypatch.setattr(install, "run", run)
    assert install.add("") == 0
    assert ran == []
    assert install.add(str(project / "mine.txt")) == 0
    ((command, arguments, constraints),) = ran
    assert (command, arguments[-2:]) == (["uv", "pip"], ["-r", str(project / "mine.txt")])
    assert constraints == "one==1.0 ; python_version < '4'\ncontrol==1\n"
    assert install.add(str(project / "none.txt")) == 1
    assert f"error: REQUIREMENTS={project}/none.txt: no such file" in capsys.readouterr().err
