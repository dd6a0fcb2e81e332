"""A node whose run directory is in another's hands while it trains; who may read what a run leaves; what its logs show."""

import contextlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.local_project import LocalProject
from tests.project import SLOWEST, await_until

COMMON = ("config=task_cnn", "epochs=100000")
STEPS = "set=train.global_batch=20,train.steps_per_call=2,checkpoint.every_steps=200,train.steps="
ESCAPE = "\x1b]0;evil\x07\x1b[2J\x9b31m"


def begin(project: LocalProject, pictures, name: str, steps: int):
    """A run that is training."""
    playbook = project.start("train", f"run={name}", f"dataset={pictures}", *COMMON, f"{STEPS}{steps}")
    await_until(lambda: project.steps(2, name) > 4 or playbook.poll() is not None, 180, f"{name} training")
    assert playbook.poll() is None, playbook.communicate()[0]
    return playbook


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


def others_may(*folders: Path) -> list[str]:
    """What others than the owner and his group have any right to."""
    return [
        str(path) for folder in folders for path in (folder, *folder.rglob("*")) if not path.is_symlink() and path.stat().st_mode & 0o007
    ]


@pytest.fixture(scope="module")
def attacked(project, pictures, tmp_path_factory):
    """A run whose nodes were tampered with while it trained: its output, and where an attacker wanted a file to be."""
    outside = tmp_path_factory.mktemp("outside")
    playbook = begin(project, pictures, "attacked", 600)
    environments = [Path(f"/proc/{project.trainer_pid(worker, 'attacked')}/environ").read_text() for worker in (1, 2)]
    for worker in (1, 2):
        folder = project.node(worker, "attacked")
        plant(folder, folder / "workers" / f"worker{worker}", outside / f"of-{worker}" / "written")
    output, _ = playbook.communicate(timeout=240 * SLOWEST)
    return playbook.returncode, output, outside, environments


def test_a_hostile_node_writes_nothing_outside_and_the_run_ends_with_its_result(project, attacked):
    code, output, outside, _ = attacked
    assert code == 0, output
    assert "attacked: SUCCEEDED" in output
    assert list(outside.iterdir()) == []
    assert project.summary("attacked")["steps"] == 600
    here = {str(path.relative_to(project.run("attacked"))) for path in project.run("attacked").rglob("*") if not path.is_dir()}
    assert not [name for name in here if re.search("evil|junk|written|epoch-9999|epoch-0000", name)]
    assert not [path for path in project.run("attacked").rglob("*") if path.is_symlink()]


def test_what_a_hostile_node_says_is_shown_and_never_obeyed(attacked):
    _, output, _, _ = attacked
    assert all(character.isprintable() or character in "\n\t" for character in output)
    words = " ".join(output.split())
    assert "not a file that workers write" in words
    assert "lines are not valid records" in words
    assert "Traceback" not in output


def test_status_logs_and_report_of_an_attacked_run(project, attacked):
    for command, more in (("status", ()), ("logs", ("lines=4000",))):
        output = project.play(command, "run=attacked", *more).stdout
        assert all(character.isprintable() or character in "\n\t" for character in output)
    assert "\\x1b]0;evil\\x07\\x1b[2J\\x9b31m" in output
    (project.node(2, "attacked") / "workers" / "worker2" / "exit.json").write_text('["no end"]')
    assert 'exit.json: ["no end"] is not what a worker writes' in " ".join(project.play("status", "run=attacked").stdout.split())


def test_others_have_no_right_to_a_run_its_data_and_its_code(project, attacked):
    nodes = [project.node(worker, "attacked") / part for worker in (1, 2) for part in ("workers", "config.yml")]
    assert others_may(project.run("attacked"), *(path for path in nodes if path.exists())) == [
        str(project.node(worker, "attacked") / "workers" / f"worker{worker}" / "metrics-1.jsonl") for worker in (1, 2)
    ]
    private = project.root / ".lockstep"
    dfs = private / "dfs"
    assert others_may(*(path for kind in ("datasets", "code") for path in (dfs / kind).iterdir())) == []
    # What the commands keep for themselves; of dfs and workers, `provision.yml` or the user made the folder itself.
    made = [path for path in private.iterdir() if path.name != "dfs" and not path.name.startswith("worker")]
    assert {"seen", "key"} <= {path.name for path in made}
    assert others_may(*made) == []


def test_temporary_files_of_a_worker_lie_in_its_own_folder_and_go_with_it(project, attacked):
    _, _, _, environments = attacked
    for worker, environment in enumerate(environments, 1):
        folder = project.node(worker, "attacked") / "workers" / f"worker{worker}" / "tmp"
        assert f"TMPDIR={folder}\0" in environment
        assert not folder.exists()


def test_logs_show_how_far_every_worker_is_and_follow_it_to_its_end(project, pictures):
    playbook = begin(project, pictures, "followed", 500)
    follows = [project.start("logs", "run=followed", "follow=true", "lines=4000") for _ in range(2)]
    first = [follows[0].stdout.readline() for _ in range(1)]
    while "worker2: " not in first[-1] and first[-1]:
        first.append(follows[0].stdout.readline())
    os.killpg(follows[0].pid, signal.SIGINT)
    interrupted = "".join(first) + follows[0].communicate(timeout=60 * SLOWEST)[0]
    assert playbook.poll() is None, "Ctrl-C ended the training"
    assert "Only its logs are no longer shown." in interrupted
    output, _ = playbook.communicate(timeout=240 * SLOWEST)
    assert playbook.returncode == 0, output
    followed, _ = follows[1].communicate(timeout=60 * SLOWEST)
    assert follows[1].returncode == 0, followed
    for line in (
        r"worker1: === launch 1, ",
        r"worker1: epoch \d+/\d+  step [\d,]+/500  [\d,]+ images/s  loss \d",
        r"worker2: epoch \d+/\d+  step ",
    ):
        assert re.search(line, followed), followed
    assert re.search(r"worker1: epoch \d+/\d+ done  loss", followed)
    assert re.search(r"worker2: epoch \d+/\d+ done\n", followed)
    again = project.play("logs", "run=followed", "lines=3", "--check").stdout
    assert re.search(r"worker1: last 3 lines of worker.log\n(  epoch .*\n){2}  epoch .* done  loss", again), again


def command_lines() -> str:
    """Of all processes of this machine."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_text(errors="replace"))
    return "".join(lines)


def test_the_secret_of_a_launch_is_in_its_workers_files_and_nowhere_else(project, pictures, tmp_path):
    """Neither with full output, nor in a command line, nor in any file of the control node."""
    argv = project.argv("train", "run=secretive", f"dataset={pictures}", *COMMON, f"{STEPS}100", "-vvvv")
    with (tmp_path / "output").open("w") as stream:
        playbook = subprocess.Popen(argv, cwd=project.root, env=project.environment(), stdout=stream, stderr=stream)
    files = [project.node(worker, "secretive") / "workers" / f"worker{worker}" / "secret" for worker in (1, 2)]
    await_until(lambda: project.steps(2, "secretive") > 0 or playbook.poll() is not None, 180, "training")
    lines = command_lines()
    code, output = playbook.wait(240 * SLOWEST), (tmp_path / "output").read_text(errors="replace")
    assert code == 0, output[-4000:]
    (secret,) = {file.read_text() for file in files}
    assert len(bytes.fromhex(secret)) == 32
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
    assert secret not in output
    assert "run_worker.sh" in output
    assert secret not in lines
    assert "--run" in lines
    # An attack's sparse file of a terabyte holds nothing.
    files_here = [path for path in project.root.rglob("*") if path.is_file() and path.stat().st_size < 1 << 30]
    holders = [path for path in files_here if secret.encode() in path.read_bytes()]
    assert sorted(holders) == sorted(files)
