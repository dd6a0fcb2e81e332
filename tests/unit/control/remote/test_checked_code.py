"""Published code on a host: only what the control node knows is run, whatever lies on the shared folder."""

import hashlib
import os
import shlex
import subprocess
import sys
import threading
import zipfile

import pytest
from jinja2 import Environment, FileSystemLoader

from control.remote import checked_code
from plugins.filter.lockstep import FilterModule
from tests.unit.samples import ROOT

MAIN = "import sys, os; print({word!r}, sys.argv[1:], __file__); sys.exit({code})"


def archive(path, word="right", code=0):
    with zipfile.ZipFile(path, "w") as stream:
        stream.writestr("trainer/__init__.py", "")
        stream.writestr("trainer/__main__.py", MAIN.format(word=word, code=code))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def shared(tmp_path):
    """The archive on the shared folder, and its digest."""
    (tmp_path / "dfs" / "code").mkdir(parents=True)
    path = tmp_path / "dfs" / "code" / "trainer-0123.zip"
    return path, archive(path)


def run(shared, tmp_path, *arguments, cwd=None):
    path, sha256 = shared
    argv = checked_code.command(sys.executable, str(path), sha256, str(tmp_path / "my caches"))
    return subprocess.run([*argv, *arguments], capture_output=True, text=True, check=False, cwd=cwd, timeout=60)


def own(tmp_path):
    return tmp_path / "my caches" / "code" / "trainer-0123.zip"


def test_copy_of_archive_is_run_and_kept(shared, tmp_path):
    done = run(shared, tmp_path, "-m", "trainer", "train", "--run", "a b")
    assert done.stdout == f"right ['train', '--run', 'a b'] {own(tmp_path)}/trainer/__main__.py\n"
    assert os.listdir(own(tmp_path).parent) == ["trainer-0123.zip"]
    shared[0].unlink()
    assert run(shared, tmp_path, "-m", "trainer").stdout.startswith("right []"), "an own copy needs no shared folder"


def test_exit_codes_pass_through(shared, tmp_path):
    sha256 = archive(shared[0], code=42)
    assert run((shared[0], sha256), tmp_path, "-m", "trainer").returncode == 42


def test_a_changed_archive_is_not_run(shared, tmp_path):
    archive(shared[0], word="harm")
    done = run(shared, tmp_path, "-m", "trainer")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {shared[0]} has SHA-256 ")
    assert f"and {shared[1][:16]}... was published; it is not run" in done.stderr
    assert "Fix: run the same command again" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not own(tmp_path).parent.exists()


def test_a_changed_copy_is_replaced(shared, tmp_path):
    run(shared, tmp_path, "-m", "trainer")
    archive(own(tmp_path), word="harm")
    assert run(shared, tmp_path, "-m", "trainer").stdout.startswith("right")
    assert hashlib.sha256(own(tmp_path).read_bytes()).hexdigest() == shared[1]


@pytest.mark.parametrize("there", ["nothing", "a folder", "a pipe"])
def test_no_archive_is_said_so(there, shared, tmp_path):
    shared[0].unlink()
    if there != "nothing":
        (os.mkdir if there == "a folder" else os.mkfifo)(shared[0])
    done = run(shared, tmp_path, "-m", "trainer")
    assert (done.returncode, done.stderr) == (
        1,
        f"error: {shared[0]}: no such file. Fix: run the same command again; it sends the code again\n",
    )


def test_package_in_the_working_directory_is_not_ours(shared, tmp_path):
    """A package in the working directory is not taken for ours.

    Under Slurm that is a folder which all nodes write: `python -m` looks there first.
    """
    (tmp_path / "job" / "trainer").mkdir(parents=True)
    (tmp_path / "job" / "trainer" / "__main__.py").write_text("print('harm')")
    assert run(shared, tmp_path, "-m", "trainer", cwd=tmp_path / "job").stdout.startswith("right")


def test_changing_archive_is_run_right_or_not(shared, tmp_path):
    """An archive that changes all the time is run right or not at all.

    Between a look and a use there is no time in which another archive could be put there.
    """
    right, harm, stop = shared[0].read_bytes(), tmp_path / "harm.zip", threading.Event()
    archive(harm, word="harm")

    def attack():
        while not stop.is_set():
            for data in (harm.read_bytes(), right):
                part = shared[0].with_name(".part")
                part.write_bytes(data)
                part.replace(shared[0])
                stop.wait(0.001)

    thread = threading.Thread(target=attack)
    thread.start()
    try:
        outputs = []
        for _ in range(12):
            own(tmp_path).unlink(missing_ok=True)
            outputs.append(run(shared, tmp_path, "-m", "trainer"))
    finally:
        stop.set()
        thread.join()
    assert all(done.stdout.startswith("right") or "it is not run" in done.stderr for done in outputs)
    assert not any("harm" in done.stdout for done in outputs)


def test_two_workers_of_host_may_start_at_once(shared, tmp_path):
    argv = checked_code.command(sys.executable, str(shared[0]), shared[1], str(tmp_path / "caches"))
    both = [subprocess.Popen([*argv, "-m", "trainer"], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert all(one.communicate()[0].startswith("right") for one in both)
    assert os.listdir(tmp_path / "caches" / "code") == ["trainer-0123.zip"]


def script(shared, tmp_path):
    """The start script of a worker, as the role writes it."""
    environment = Environment(loader=FileSystemLoader(ROOT / "templates"), autoescape=False)
    environment.filters |= FilterModule().filters() | {"quote": shlex.quote}
    folder = tmp_path / "a job"
    folder.mkdir(exist_ok=True)
    known = {"job_name": "a job", "inventory_hostname": "node 1", "worker_rank": 0, "worker_root": str(tmp_path), "worker_gpus": ""}
    caches = str(tmp_path / "my caches")
    paths = {"worker_caches": caches, "job_folder": str(folder)}
    more = {
        "worker_threads": 1,
        "worker_program": {"python": sys.executable, "code": str(shared[0]), "sha256": shared[1], "caches": caches},
        "job_arguments": ["-m", "trainer", "train", "it's"],
    }
    (folder / "run_worker.sh").write_text(environment.get_template("run_worker.sh.j2").render(**known, **paths, **more))
    subprocess.run(["bash", "run_worker.sh"], cwd=folder, check=False)
    return folder


def test_start_script_runs_only_what_was_published(shared, tmp_path):
    folder = script(shared, tmp_path)
    assert "right ['train', \"it's\"]" in (folder / "worker.log").read_text()
    own(tmp_path).unlink()
    archive(shared[0], word="harm")
    folder = script(shared, tmp_path)
    assert '"exit_code": 1' in (folder / "exit.json").read_text()
    log = (folder / "worker.log").read_text()
    assert "harm" not in log
    assert f"error: {shared[0]} has SHA-256" in log
