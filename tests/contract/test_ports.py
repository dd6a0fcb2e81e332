"""Ports of workers of one machine: chosen free on the default inventory; a holder of one is named, and what is advised works.

Two runs at once: tests/contract/test_failing_workers.py.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from tests.contract.held import CHECKED, begin
from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE, await_until

QUICK = ("config=task_cnn", "quick=true")


@pytest.fixture(scope="module")
def default(project) -> LocalProject:
    """The project with the inventory that a clone has."""
    return project.as_cloned()


@EXHAUSTIVE
def test_run_is_found_on_its_ports(default, pictures):
    default.hold("steady", 6)
    default.play("train", "run=steady", f"dataset={pictures}", *CHECKED, "detach=true")
    before = default.ports_of("steady")
    assert "steady is under way" in default.play("train", "run=steady", "detach=true").stdout
    assert default.ports_of("steady") == before
    default.play("stop", "run=steady")
    default.hold("steady", 20)
    with socket.create_server(("", min(before))):
        default.play("train", "run=steady", "detach=true")
    assert default.ports_of("steady") != before
    default.play("stop", "run=steady")


@EXHAUSTIVE
def test_program_that_has_the_port_is_named(project, pictures):
    script = f"import socket, time\nserver = socket.create_server(('', {project.ports[1]}))\nprint('ready', flush=True)\ntime.sleep(600)"
    squatter = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert squatter.stdout.readline() == "ready\n"
        for more in ((), ("preflight=false",)):
            done = project.play("train", "run=squatted", f"dataset={pictures}", *QUICK, *more, check=False)
            assert done.returncode != 0
            pattern = rf"{project.ports[1]}( on worker2)? is held by .*python.* \(pid (\d+), user (\w+)\)"
            (actual,) = re.findall(pattern, done.stdout)
            assert int(actual[1]) == squatter.pid
            assert "end that program, or set another worker_port" in done.stdout
        os.kill(int(actual[1]), signal.SIGTERM)
        squatter.wait(10)
    finally:
        squatter.kill()
    assert "squatted: SUCCEEDED" in project.play("train", "run=squatted", f"dataset={pictures}", *QUICK).stdout


@EXHAUSTIVE
@pytest.mark.parametrize("fix", ["stop", "another port", "kill-session"])
def test_each_fix_of_a_held_port_works(project, pictures, fix):
    """What is printed of it: tests/contract/test_under_way.py, where the last of these fixes is the fixture's."""
    begin(project, pictures, "first", 6)
    done = project.play("train", "run=later", f"dataset={pictures}", *QUICK, check=False)
    assert done.returncode != 0
    assert re.search(rf"\[FAIL\] worker1 +port +run first is training on {project.ports[0]}", done.stdout), done.stdout
    more = []
    if fix == "stop":
        assert "ansible-playbook stop.yml -e run=first" in done.stdout
        project.play("stop", "run=first")
    elif fix == "another port":
        assert "set another worker_port" in done.stdout
        more = ["worker_port=auto"]
    else:
        for command in dict.fromkeys(re.findall(r"folder=.*?; tmux -L lockstep kill-session -t =\S+w\d-[0-9a-f]{6}", done.stdout)):
            subprocess.run(command, shell=True, check=True)
        await_until(lambda: not project.workers(), 60, "the end of the first run")
    shutil.rmtree(project.run("later"), ignore_errors=True)
    try:
        assert "later: SUCCEEDED" in project.play("train", "run=later", f"dataset={pictures}", *QUICK, *more).stdout
    finally:
        project.play("stop", "run=first", check=False)
        for name in ("first", "later"):
            project.play("playbooks/delete_run", f"run={name}", check=False)
