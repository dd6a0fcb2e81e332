"""A node whose run directory is in another's hands while it trains; who may read what a run leaves."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.contract.held import SMALL, begin, finish

COMMON = (*SMALL, "epochs=3")
ESCAPE = "\x1b]0;evil\x07\x1b[2J\x9b31m"


def plant(folder: Path, own: Path, target: Path) -> None:
    """What somebody may do who can write a run directory on a node."""
    for place in (folder / f"x\n4 1.0 {target}", folder / str(target).lstrip("/")):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("evil")
    for name in ("logs/train/events.out.tfevents.evil", "checkpoints/epoch-0000.keras"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to("/etc/passwd")
    with (folder / "checkpoints" / "epoch-9999.keras").open("wb") as stream:
        stream.truncate(2**42)
    os.mkfifo(own / "metrics-1.jsonl")
    for number in range(3000):
        (folder / f"junk {number} {ESCAPE}").touch()
    with (own / "worker.log").open("a") as stream:
        stream.write(f"{ESCAPE}\n")
    hostile = [{"t": 1.0, "kind": "phase", "phase": ESCAPE, "note": "a\nb"}, {"t": 1.0, "kind": "steps", "step": "5"}, [], 7]
    hostile += [{"t": 1.0, "kind": "epoch", "epoch": 10**30}, {"t": 1.0, "kind": "reduction", "name": ESCAPE, "why": ESCAPE}]
    with (own / "metrics.jsonl").open("a") as stream:
        stream.write("".join(f"{json.dumps(record)}\n" for record in hostile))
        stream.write(
            '{"t": NaN, "kind": "heartbeat"}\n{"t": 1, "kind": "steps", "step": 1' + "0" * 5000 + "}\n" + "[" * 50_000 + "\n\n\0\n"
        )
    (own / "exit.json").write_text('["no end"]')


@pytest.fixture(scope="module")
def attacked(project, pictures, tmp_path_factory):
    """A run whose nodes were tampered with while it trained: its output, and where an attacker wanted a file to be."""
    outside = tmp_path_factory.mktemp("outside")
    playbook = begin(project, pictures, "attacked", 10, how=COMMON)
    environments = [Path(f"/proc/{project.trainer_pid(worker, 'attacked')}/environ").read_text() for worker in (1, 2)]
    for worker in (1, 2):
        folder = project.node(worker, "attacked")
        plant(folder, folder / "workers" / f"worker{worker}", outside / f"of-{worker}" / "written")
    project.release("attacked")
    code, output = finish(playbook)
    return code, output, outside, environments


def printable(text: str) -> bool:
    return all(character.isprintable() or character in "\n\t" for character in text)


def test_hostile_node_writes_nothing_outside_and_run_succeeds(project, attacked):
    code, output, outside, _ = attacked
    assert code == 0, output
    assert "attacked: SUCCEEDED" in output
    assert list(outside.iterdir()) == []
    assert project.summary("attacked")["steps"] == 24
    here = {str(path.relative_to(project.run("attacked"))) for path in project.run("attacked").rglob("*") if not path.is_dir()}
    assert not [name for name in here if re.search("evil|junk|written|epoch-9999|epoch-0000", name)]
    assert not [path for path in project.run("attacked").rglob("*") if path.is_symlink()]


def test_what_it_says_is_shown_and_never_obeyed(attacked):
    _, output, _, _ = attacked
    assert printable(output)
    words = " ".join(output.split())
    assert "not a file that workers write" in words
    assert "lines are not valid records" in words
    assert "Traceback" not in output


def test_status_and_logs_of_an_attacked_run(project, attacked):
    logs = project.play("logs", "run=attacked", "lines=4000").stdout
    assert "\\x1b]0;evil\\x07\\x1b[2J\\x9b31m" in logs
    (project.node(2, "attacked") / "workers" / "worker2" / "exit.json").write_text('["no end"]')
    status = project.play("status", "run=attacked").stdout
    assert 'exit.json: ["no end"] is not what a worker writes' in " ".join(status.split())
    assert printable(logs + status)


def others_may(*folders: Path) -> list[str]:
    """What others than the owner and his group have any right to."""
    return [
        str(path) for folder in folders for path in (folder, *folder.rglob("*")) if not path.is_symlink() and path.stat().st_mode & 0o007
    ]


def test_others_may_not_read_a_run(project, attacked):
    nodes = [project.node(worker, "attacked") / part for worker in (1, 2) for part in ("workers", "config.yml")]
    assert others_may(project.run("attacked"), *(path for path in nodes if path.exists())) == [
        str(project.node(worker, "attacked") / "workers" / f"worker{worker}" / "metrics-1.jsonl") for worker in (1, 2)
    ]
    private = project.root / ".lockstep"
    dfs = private / "dfs"
    assert others_may(*(path for kind in ("datasets", "code") for path in (dfs / kind).iterdir())) == []
    # What the commands keep for themselves; of dfs and workers, `provision.yml` or the user made the folder itself, this test `stub`.
    made = [path for path in private.iterdir() if path.name not in ("dfs", "stub") and not path.name.startswith("worker")]
    assert {"seen", "key"} <= {path.name for path in made}
    assert others_may(*made) == []


def test_temporary_files_lie_in_their_workers_folder(project, attacked):
    _, _, _, environments = attacked
    for worker, environment in enumerate(environments, 1):
        folder = project.node(worker, "attacked") / "workers" / f"worker{worker}" / "tmp"
        assert f"TMPDIR={folder}\0" in environment
        assert not folder.exists()
