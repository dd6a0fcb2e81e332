"""Scripts of the user's own on two workers of this machine: what they get and leave, what fails, what is stopped.

What is refused: tests/contract/test_refusals.py. Scripts that train: tests/training/test_script.py.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE

SHOWS = """
import json, os, signal, sys
from pathlib import Path
import trainer as neighbour
seen = {"argv": sys.argv[1:], "cwd": sorted(os.listdir()), "neighbour": neighbour.VALUE, "path0": sys.path[0] == os.getcwd()}
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCKSTEP_RUN", "LOCKSTEP_RANK", "LOCKSTEP_WORKERS", "LOCKSTEP_RESTART")
seen |= {name: os.environ[name] for name in names}
seen["master"] = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}" == json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][0]
if os.environ["LOCKSTEP_RESTART"] == "0":
    Path("left").touch()
    if os.environ["RANK"] == "1":
        raise ValueError("no luck")
    signal.pause()
assert Path("left").exists() or os.environ["RANK"] == "0"
Path(os.environ["LOCKSTEP_OUTPUT"], "seen.json").write_text(json.dumps(seen))
Path("logs").mkdir(exist_ok=True)
Path("logs", f"of {os.environ['RANK']}.txt").write_text("line")
print("printed by rank", os.environ["RANK"])
"""
"""Its first launch fails."""
FREEZES = """
import os, signal
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
signal.pause()
"""


EVIL = "$(touch evil) `touch evil` ; touch evil"
ARGUMENTS = ["--lr", "0.1", EVIL, "{{ lookup('pipe', 'touch evil') }}", "it's", 'a "quote"', "two\nlines", "../..", "--", "-e", ""]


@dataclass
class Shown:
    """What is seen of a script that fails, and succeeds when it is started again."""

    failed: str
    """What the command prints whose script fails."""
    ends: list[float]
    """When each worker of that launch ended, by rank."""
    again: str
    """What the second command prints."""


@pytest.fixture(scope="module")
def shown(project, tmp_path_factory) -> Shown:
    """Names and arguments are hostile."""
    folder = tmp_path_factory.mktemp("it's a $(touch evil) {{ 7 * 7 }}")
    (folder / f"{EVIL} 'it'.py").write_text(SHOWS)
    (folder / "trainer.py").write_text("VALUE = 7")
    for name in ("{{ 7 * 7 }}.txt", "two\nlines", "-rf"):
        (folder / name).touch()
    (folder / ".hidden").touch()
    words = " ".join("'" + argument.replace("'", "'\"'\"'") + "'" for argument in ARGUMENTS)
    given = {"script": str(folder / f"{EVIL} 'it'.py"), "args": words, "outputs": "logs/,missing.txt", "run": "shown"}
    failed = project.play("train", json.dumps(given), check=False)
    assert failed.returncode != 0
    ends = [json.loads((project.run("shown") / f"workers/worker{number}/exit.json").read_text())["ended_at"] for number in (1, 2)]
    return Shown(failed.stdout, ends, project.play("train", "run=shown", "preflight=false").stdout)


def seen(project: LocalProject, name: str, where: str) -> dict:
    return json.loads((project.run(name) / where / "seen.json").read_text())


def test_script_gets_its_files_arguments_and_environment(project, shown):
    for rank, where in enumerate(("output", "workers/worker2/output")):
        got = seen(project, "shown", where)
        assert got["argv"] == ARGUMENTS
        assert (got["neighbour"], got["path0"], got["master"]) == (7, True, True)
        assert set(got["cwd"]) >= {f"{EVIL} 'it'.py", "trainer.py", "{{ 7 * 7 }}.txt", "two\nlines", "-rf"}
        assert ".hidden" not in got["cwd"]
        environment = [got[name] for name in ("RANK", "LOCKSTEP_RANK", "WORLD_SIZE", "LOCKSTEP_WORKERS", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
        assert environment == [str(rank), str(rank), "2", "2", "0", "1"]
        assert (got["LOCKSTEP_RUN"], got["LOCKSTEP_RESTART"]) == ("shown", "1")
    assert not [path for folder in (project.root, Path.cwd()) for path in folder.rglob("evil")]


def test_what_a_script_leaves_is_collected(project, shown):
    for expected in ("worker1: printed by rank 0", "outputs=missing.txt: the script left no such file or folder", "shown: SUCCEEDED"):
        assert expected in shown.again
    assert (project.run("shown") / "output" / "logs" / "of 0.txt").read_text() == "line"
    assert (project.run("shown") / "workers" / "worker2" / "output" / "logs" / "of 1.txt").read_text() == "line"
    assert not list(project.run("shown").rglob("secret"))
    assert "not fetched" not in shown.again
    summary = project.summary("shown")
    assert {key: summary[key] for key in ("state", "workers", "restarts")} == {"state": "SUCCEEDED", "workers": 2, "restarts": 1}
    assert summary["seconds_total"] > 0


def test_first_failure_is_named_and_ends_all(shown):
    expected = ("First failure: worker2 (rank 1) ended with exit code 1", "ValueError: no luck", "worker1 (rank 0): ended", "shown: FAILED")
    assert [words for words in expected if words not in shown.failed] == []
    assert shown.ends[1] < shown.ends[0]


@EXHAUSTIVE
def test_frozen_script_is_ended(project, tmp_path):
    (tmp_path / "freezes.py").write_text(FREEZES)
    frozen = project.play("train", f"script={tmp_path}/freezes.py", "run=freezes", check=False).stdout
    for expected in ("First failure: worker2 (rank 1) was killed by SIGKILL", "worker1 (rank 0): ended", "freezes: FAILED"):
        assert expected in frozen
    assert "the script of rank 1 has been stopped (SIGSTOP, SIGTSTP) for 15 s" in frozen
    assert "-e run=freezes starts all again" in frozen
