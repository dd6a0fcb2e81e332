"""The script that a worker is started with: what it writes, for whom, and what it leaves."""

import json
import os
import re
import shlex
import signal
import subprocess

import jinja2
import pytest

from control.remote import admission, log_lines, worker_files
from tests.project import await_until
from tests.read_only import read_only
from tests.unit.conftest import ROOT
from trainer.rundir import schemas

VALUES = {
    **dict.fromkeys(("worker_root", "worker_caches"), "/nowhere"),
    "job_name": "Worker 0",
    "job_arguments": ["-m", "trainer", "train"],
    "inventory_hostname": "pi1",
    "worker_exports": "",
    "worker_gpus": "",
    "worker_threads": 1,
    "worker_rank": 0,
}
WRITES = '#!/bin/bash\necho "$TMPDIR"; umask; echo x > "$TMPDIR/__autograph_generated_file.py"; echo line of launch; '


@pytest.fixture
def worker(tmp_path):
    """A worker's folder with its script; its Python is a shell script of the test's."""
    environment = jinja2.Environment()
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    # What is put before the trainer has tests of its own.
    environment.filters["checked_code"] = lambda python, _: python
    environment.filters["fork_server_key"] = lambda *_: ""
    folder, python = tmp_path / "run" / "workers" / "pi 1", tmp_path / "python"
    folder.mkdir(parents=True)
    template = environment.from_string((ROOT / "templates/run_worker.sh.j2").read_text())
    (folder / "run_worker.sh").write_text(template.render(**VALUES, job_folder=str(folder), worker_program=shlex.quote(str(python))))

    def start(script):
        python.write_text(f"{WRITES}{script}\n")
        python.chmod(0o755)
        return subprocess.Popen(["bash", "run_worker.sh"], cwd=folder, start_new_session=True)

    return folder, start


def children(pid):
    """Names of a process' children."""
    return subprocess.run(["ps", "-o", "comm=", "--ppid", str(pid)], capture_output=True, text=True, check=False).stdout.split()


def test_only_a_launchs_own_lines_are_quoted(worker):
    folder, start = worker
    for code in (1, 3):
        start(f"echo error of {code}; exit {code}").wait()
    lines = (folder / "worker.log").read_text().splitlines()
    headers = [line for line in lines if line.startswith(schemas.HEADER)]
    assert [line.split(",")[0] for line in headers] == ["=== launch 1", "=== launch 2"]
    quoted = log_lines.readable_lines(log_lines.of_last_launch(lines))
    assert (quoted[0], quoted[-1]) == (headers[1], "error of 3")
    assert "error of 1" not in quoted
    assert worker_files.end((folder / "exit.json").read_text())["exit_code"] == 3


def test_others_may_not_read_what_it_writes(worker):
    """Others have no right to what it writes and its temporary folder goes."""
    folder, start = worker
    start("").wait()
    lines = (folder / "worker.log").read_text().splitlines()
    assert lines[1:3] == [str(folder / "tmp"), "0027"]
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir() if path.name != "run_worker.sh"}
    assert modes == {"worker.log": 0o640, "exit.json": 0o640}


def test_what_killed_worker_left_goes_with_next_start(worker):
    folder, start = worker
    killed = start("echo ready; exec sleep 60")
    await_until(lambda: "ready" in (folder / "worker.log").read_text() if (folder / "worker.log").is_file() else False, 60, "start")
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert (folder / "tmp" / "__autograph_generated_file.py").is_file()
    assert not (folder / "exit.json").exists()
    start("ls").wait()
    assert not (folder / "tmp").exists()


@pytest.mark.parametrize(("code", "supervised", "recorded"), [(42, True, False), (42, False, True), (1, True, True)])
def test_worker_whose_host_goes_down_has_not_ended(code, supervised, recorded, worker):
    folder, start = worker
    start(f"touch {'supervisor.json' if supervised else 'other'}; exit {code}").wait()
    assert (folder / "exit.json").exists() is recorded


def test_a_killed_supervisor_is_started_again(worker):
    """Without its file, which it leaves only if it is killed, the end is one."""
    folder, start = worker
    start("[ -f supervisor.json ] && rm supervisor.json && exit 3; touch supervisor.json; kill -9 $$").wait()
    assert (folder / "worker.log").read_text().count("line of launch") == 2
    assert json.loads((folder / "exit.json").read_text())["exit_code"] == 3
    start("kill -9 $$").wait()
    assert json.loads((folder / "exit.json").read_text())["exit_code"] == 137


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_end_is_recorded_whatever_lies_in_its_place(kind, worker, tmp_path):
    folder, start = worker
    (folder / "exit.json").mkdir() if kind == "folder" else (folder / "exit.json").symlink_to(tmp_path / "elsewhere")
    start("exit 3").wait()
    assert json.loads((folder / "exit.json").read_text())["exit_code"] == 3
    assert not (tmp_path / "elsewhere").exists()


def test_half_written_end_is_not_fetched(worker):
    """Nor is it called a file that no worker writes."""
    folder, _ = worker
    (part,) = re.findall(r"> (\S+)\nmv ", (folder / "run_worker.sh").read_text())
    assert re.fullmatch(admission.STAY, f"workers/worker1/{part}")


def test_an_end_is_recorded_in_removed_folder(worker):
    """A script's worker, and one that nobody supervises, end where they were started."""
    folder, start = worker
    start(f"rm -rf {shlex.quote(str(folder))}; exit 3").wait()
    assert worker_files.end((folder / "exit.json").read_text())["exit_code"] == 3


def test_a_read_only_folder_is_waited_for(worker, tmp_path):
    """As after a restart of a host whose disk has an error."""
    folder, start = worker
    with read_only(folder):
        process = start("exit 3")
        await_until(lambda: "sleep" in children(process.pid), 60, "the wait")
        assert not (folder / "exit.json").exists()
    process.wait()
    assert worker_files.end((folder / "exit.json").read_text())["exit_code"] == 3
