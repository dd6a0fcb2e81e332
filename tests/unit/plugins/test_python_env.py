"""The environment on a host: made whole from wheels or made anew, never replaced under a running program."""

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from types import SimpleNamespace

import pytest

from tests.project import await_until
from tests.unit.control.provision.test_wheels import make_wheel, pin
from tests.unit.fake_module import Real, ended, failed, load
from trainer.common.files import sha256_file

python_env = load("python_env")
UV = shutil.which("uv", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))


def add_uv(folder, script):
    """A wheel of uv whose program is a shell script."""
    with zipfile.ZipFile(folder / "uv-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("uv-1.0.data/scripts/uv", f"#!/bin/sh\n{script}\n")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A host's own directory and a folder of wheels, with uv when this machine has it."""
    monkeypatch.setattr(python_env.os, "environ", dict(os.environ))
    monkeypatch.setattr(python_env.os, "sync", lambda: None)
    wheels, root = tmp_path / "dfs" / "my wheels", tmp_path / "my root"
    wheels.mkdir(parents=True)
    (wheels / "requirements.txt").write_text(pin("tiny", make_wheel(wheels, "tiny")))
    if UV:
        add_uv(wheels, f'exec {UV} "$@"')

    def sums():
        return {path.name: sha256_file(path) for path in wheels.iterdir()}

    def module(state="present", digest="d1", cls=Real, **options):
        parameters = {
            "need_mb": 1,
            "modules": ["tiny"],
            "others": [str(root / "caches")],
            "python": sys.executable,
            "sums": sums(),
            **options,
        }
        return cls(path=str(root / "venv"), wheels=str(wheels), digest=digest, state=state, **parameters)

    return SimpleNamespace(root=root, venv=root / "venv", wheels=wheels, module=module, sums=sums)


def present(place, **options):
    return ended(python_env, place.module(**options))


def absent(place, **options):
    return ended(python_env, place.module(state="absent", **options))


def works(place):
    done = subprocess.run(
        [place.venv / "bin" / "python", "-c", "import tiny; print(tiny.__file__)"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip().startswith(str(place.venv))


needs_uv = pytest.mark.skipif(UV is None, reason="uv is not installed here")
needs_pip = pytest.mark.skipif(importlib.util.find_spec("ensurepip") is None, reason="this Python can't make environments with pip")


@needs_uv
def test_made_with_uv_once_and_clean(place):
    made = present(place)
    assert (made["changed"], made["tool"]) == (True, "uv")
    assert works(place)
    assert sorted(os.listdir(place.root)) == [".lockstep-env.lock", ".lockstep-env.venv.made", "venv"]
    assert present(place) == {"changed": False}


def spoil_stamp(venv, text):
    (venv / "lockstep.stamp").write_text(text)


def made_by(venv, python):
    spoil_stamp(venv, json.dumps({**json.loads((venv / "lockstep.stamp").read_text()), "python": python}))


@needs_uv
@pytest.mark.parametrize(
    ("spoil", "digest"),
    [
        pytest.param(lambda venv: (venv / "lockstep.stamp").unlink(), "d1", id="killed before the stamp"),
        pytest.param(lambda venv: spoil_stamp(venv, '{"digest": "d1", "pyth'), "d1", id="torn stamp"),
        pytest.param(lambda venv: (venv / "bin" / "python").unlink(), "d1", id="Python gone"),
        pytest.param(lambda venv: made_by(venv, "3.10"), "d1", id="another Python"),
        pytest.param(lambda venv: None, "d2", id="other wheels"),
    ],
)
def test_what_differs_is_made_anew(spoil, digest, place):
    present(place)
    (place.venv / "old").touch()
    (place.root / ".lockstep-install-abc").mkdir()
    spoil(place.venv)
    assert present(place, digest=digest)["changed"] is True
    assert not (place.venv / "old").exists()
    assert not (place.root / ".lockstep-install-abc").exists()


@needs_uv
def test_wheel_outside_the_lock_leaves_no_stamp(place):
    (place.wheels / "requirements.txt").write_text(pin("tiny", "a" * 64))
    message = failed(python_env, place.module())
    assert "ended with exit code" in message
    assert "hash" in message.lower()
    assert f"Fix: see who can write that folder, rm -r '{place.wheels}', then provision.yml again" in message
    assert not (place.venv / "lockstep.stamp").exists()


def attack(place, what, harm):
    """Somebody else writes the folder of the wheels, between its publication and the installation."""
    if what == "uv":
        add_uv(place.wheels, f'touch {harm}; exec {UV} "$@"')
    else:
        sha256 = make_wheel(place.wheels, "tiny", files={"tiny/__init__.py": f"open({str(harm)!r}, 'w').write('harm')\n"})
        if what == "wheel and requirements":
            (place.wheels / "requirements.txt").write_text(pin("tiny", sha256))


@pytest.mark.parametrize(
    ("what", "uv"),
    [
        pytest.param("uv", True, marks=needs_uv),
        pytest.param("wheel", True, marks=needs_uv),
        pytest.param("wheel and requirements", True, marks=needs_uv),
        pytest.param("wheel and requirements", False, marks=needs_pip),
    ],
)
def test_changed_publication_is_neither_run_nor_installed(what, uv, place, tmp_path):
    """What was changed after it was published is neither run nor installed; pip makes the environment where uv does not start."""
    harm = tmp_path / "harm"
    if not uv:
        add_uv(place.wheels, "exit 126")
    sums = place.sums()
    attack(place, what, harm)
    message = failed(python_env, place.module(sums=sums))
    assert "Fix: see who can write that folder" in message
    assert not harm.exists()
    assert not (place.venv / "lockstep.stamp").exists()
    attack(place, "uv" if what == "uv" else "wheel and requirements", harm)
    assert present(place)["tool"] == ("uv" if uv else "pip")
    assert works(place)
    assert harm.exists(), "the attack is a real one: with the sums of what it wrote, it works"
    assert present(place) == {"changed": False}


def test_program_put_among_wheels_is_not_run(place, tmp_path):
    for wheel in place.wheels.glob("uv-*.whl"):
        wheel.unlink()
    sums = place.sums()
    add_uv(place.wheels, f"touch {tmp_path}/harm")
    assert python_env._Environment(place.module(sums=sums))._unpacked_uv(str(tmp_path)) is None
    assert not (tmp_path / "harm").exists()


@needs_uv
def test_environment_that_cannot_import_is_not_made(place):
    message = failed(python_env, place.module(modules=["tiny", "absent_module"]))
    assert "the new environment does not work: ModuleNotFoundError: No module named 'absent_module'" in message
    assert not (place.venv / "lockstep.stamp").exists()


def test_small_disk_is_left_unwritten(place, monkeypatch):
    monkeypatch.setattr(python_env.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000 * 2**20))
    message = failed(python_env, place.module(need_mb=2600))
    assert f"1,000 MB are free under {place.root}; the Python environment needs 2,600 MB. Free some, or set worker_root" in message
    assert os.listdir(place.root) == [".lockstep-env.lock"]


def test_what_cannot_make_it_is_named(place):
    assert failed(python_env, place.module(python="/bin/false")).endswith("/bin/false does not run: ; set python_env_interpreter")
    (place.wheels / "requirements.txt").unlink()
    assert f"{place.wheels}/requirements.txt is missing; is dfs_path mounted?" in failed(python_env, place.module())


@pytest.fixture
def running(place):
    """A program that was started as the environment's Python."""
    (place.venv / "bin").mkdir(parents=True)
    (place.venv / "lockstep.stamp").write_text("{}")
    program = place.venv / "bin" / "python"
    program.symlink_to(shutil.which("sleep"))
    process = subprocess.Popen([str(program), "60"])
    # The kernel writes the command line a moment after the program counts as started.
    await_until(lambda: python_env.host.words(process.pid)[0] == str(program), 60, "started")
    yield process.pid
    process.kill()
    process.wait()


@pytest.mark.parametrize("state", ["present", "absent"])
def test_environment_in_use_is_neither_replaced_nor_removed(state, running, place):
    message = failed(python_env, place.module(state=state))
    assert f"process {running} runs with {place.venv}, which is to be replaced or removed; wait for the run" in message
    assert (place.venv / "lockstep.stamp").exists()


def test_parallel_call_is_waited_for_and_named(place, monkeypatch):
    monkeypatch.setattr(python_env, "WAIT_S", 0)
    monkeypatch.setattr(python_env.time, "sleep", lambda _: None)
    place.root.mkdir()
    with open(place.root / ".lockstep-env.lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another provisioning has been making" in failed(python_env, place.module())


@needs_uv
def test_what_another_call_made_is_kept(place, monkeypatch):
    present(place)
    seen, made = iter([False]), python_env._Environment._made
    monkeypatch.setattr(python_env._Environment, "_made", lambda environment, wanted: next(seen, made(environment, wanted)))
    assert present(place) == {"changed": False}


def test_removal_takes_what_can_be_remade(place):
    assert present(place, check_mode=True) == {"changed": True}
    assert not place.root.exists()
    for name in ("venv", "caches", "runs"):
        (place.root / name).mkdir(parents=True)
    (place.root / ".lockstep-env.lock").touch()
    assert absent(place, check_mode=True) == {"changed": True}
    assert (place.root / "venv").exists()
    assert absent(place) == {"changed": True}
    assert os.listdir(place.root) == ["runs"]
    assert absent(place) == {"changed": False}


@pytest.mark.parametrize("state", ["present", "absent"])
@pytest.mark.parametrize("check_mode", [False, True])
def test_what_others_made_is_neither_replaced_nor_removed(state, check_mode, place):
    (place.venv / "bin").mkdir(parents=True)
    (place.root / "caches").mkdir()
    message = failed(python_env, place.module(state=state, check_mode=check_mode))
    assert message.endswith(
        f"python_env_path={place.venv} exists, and Lockstep did not make it; its contents would be lost. "
        "Move it away, or set python_env_path to a folder of its own"
    )
    assert sorted(os.listdir(place.root)) == ["caches", "venv"]
    assert (place.venv / "bin").exists()
    place.venv.rename(place.root / "theirs")
    place.venv.symlink_to(place.root / "theirs")
    assert "Lockstep did not make it" in failed(python_env, place.module(state=state, check_mode=check_mode))


def test_environment_whose_making_failed_is_ours_to_remove(place):
    (place.wheels / "requirements.txt").unlink()
    failed(python_env, place.module())
    (place.venv / "bin").mkdir(parents=True)
    assert absent(place) == {"changed": True}
    assert not place.root.exists()


@pytest.mark.parametrize("ours", [True, False])
def test_an_empty_root_goes_where_it_may(ours, place, monkeypatch):
    (place.root / "venv").mkdir(parents=True)
    monkeypatch.setattr(python_env.os, "access", lambda *_: ours)
    assert absent(place) == {"changed": True}
    assert [place.root.exists(), place.venv.exists()] == [not ours, False]
    assert absent(place) == {"changed": False}
