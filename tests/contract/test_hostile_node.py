"""A run whose hosts are taken over while it trains: its logs are followed, it is shown and deleted; who may read what it leaves."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.held import SETTINGS, SMALL, await_held
from tests.local_project import LocalProject, command_lines
from tests.project import EXHAUSTIVE, SLOWEST

OPTIONS = (*SMALL, f"set={SETTINGS},telemetry.profile_every=4", "epochs=3")
ESCAPE = "\x1b]0;evil\x07\x1b[2J\x9b31m"
SHOWN = r"\x1b]0;evil\x07\x1b[2J\x9b31m"
HUGE = 2**42


def plant(folder: Path, own: Path, target: Path) -> None:
    """What somebody may do who can write a run directory on a node."""
    for place in (folder / f"x\n4 1.0 {target}", folder / str(target).lstrip("/")):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("evil")
    for name in ("logs/train/events.out.tfevents.evil", "checkpoints/epoch-0000.keras"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to("/etc/passwd")
    with (folder / "checkpoints" / "epoch-9999.keras").open("wb") as stream:
        stream.truncate(HUGE)
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


@dataclass
class Attacked:
    """A run whose nodes were tampered with while it trained."""

    train: str
    """What its command prints, with full output."""
    followed: str
    """What a command prints that follows its logs to the end."""
    interrupted: str
    """The same of one that is interrupted."""
    lines: str
    """The command lines of this machine while it trained."""
    environments: list[str]
    """Of its workers."""
    outside: Path
    """Where an attacker wanted files to be."""


@pytest.fixture(scope="module")
def attacked(project, pictures, tmp_path_factory) -> Attacked:
    outside = tmp_path_factory.mktemp("outside")
    project.hold("attacked", 10)
    path = tmp_path_factory.mktemp("output") / "train"
    given = ("run=attacked", f"dataset={pictures}", *OPTIONS, "-vvvv")
    with path.open("w") as stream:
        training = project.launch("train", *given, stdout=stream, stderr=stream, start_new_session=True)
    project.started.append(training)
    await_held(project, "attacked", 10, training)
    lines = "".join(command_lines().values())
    environments = [Path(f"/proc/{project.trainer_pid(worker, 'attacked')}/environ").read_text() for worker in (1, 2)]
    for worker in (1, 2):
        folder = project.node(worker, "attacked")
        plant(folder, folder / "workers" / f"worker{worker}", outside / f"of-{worker}" / "written")
    follows = [project.start("logs", "run=attacked", "follow=true", "lines=4000") for _ in range(2)]
    first = [until_line(follow, "worker2: ") for follow in follows]
    os.killpg(follows[1].pid, signal.SIGINT)
    interrupted = first[1] + rest(follows[1])[1]
    assert training.poll() is None, "Ctrl-C ended the training"
    project.release("attacked")
    assert training.wait(240 * SLOWEST) == 0, path.read_text(errors="replace")[-4000:]
    code, followed = rest(follows[0])
    assert code == 0, followed
    return Attacked(path.read_text(errors="replace"), first[0] + followed, interrupted, lines, environments, outside)


def rest(playbook: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code, and what it prints after `until_line`; `communicate` would lose what has been read ahead."""
    assert playbook.stdout
    output = playbook.stdout.read()
    return playbook.wait(), output


def until_line(playbook: subprocess.Popen[str], text: str) -> str:
    """What a command prints, up to the first line that has a text."""
    assert playbook.stdout
    read = ""
    for line in playbook.stdout:
        read += line
        if text in line:
            break
    return read


def test_logs_are_followed_to_the_end(attacked):
    for line in (
        r"worker1: === launch 1, ",
        r"worker1: epoch \d+/\d+  step [\d,]+/24  [\d,]+ images/s  loss \d",
        r"worker2: epoch \d+/\d+  step ",
        r"worker1: epoch \d+/\d+ done  loss",
        r"worker2: epoch \d+/\d+ done\n",
    ):
        assert re.search(line, attacked.followed), attacked.followed
    assert "Only its logs are no longer shown." in attacked.interrupted


def test_secret_is_only_in_its_workers_files(project, attacked):
    """Neither with full output, nor in a command line, nor in any file of the control node."""
    files = [project.node(worker, "attacked") / f"workers/worker{worker}/secret" for worker in (1, 2)]
    (secret,) = {file.read_text() for file in files}
    assert len(bytes.fromhex(secret)) == 32
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
    assert secret not in attacked.train
    assert "run_worker.sh" in attacked.train
    assert secret not in attacked.lines
    assert "--run" in attacked.lines
    readable = [path for path in project.root.rglob("*") if path.is_file() and path.stat().st_size < HUGE]
    holders = [path for path in readable if secret.encode() in path.read_bytes()]
    assert sorted(holders) == sorted(files)


def printable(text: str) -> bool:
    return all(character.isprintable() or character in "\n\t" for character in text)


def test_hostile_node_writes_nothing_outside_and_run_succeeds(project, attacked):
    assert "attacked: SUCCEEDED" in attacked.train
    assert list(attacked.outside.iterdir()) == []
    assert project.summary("attacked")["steps"] == 24
    here = {str(path.relative_to(project.run("attacked"))) for path in project.run("attacked").rglob("*") if not path.is_dir()}
    assert not [name for name in here if re.search("evil|junk|written|epoch-9999|epoch-0000", name)]
    assert not [path for path in project.run("attacked").rglob("*") if path.is_symlink()]


def test_what_it_says_is_shown_and_never_obeyed(attacked):
    assert printable(attacked.train + attacked.followed + attacked.interrupted)
    words = " ".join(attacked.train.split())
    assert "not a file that workers write" in words
    assert "lines are not valid records" in words
    assert "Traceback" not in attacked.train


def test_status_and_logs_of_an_attacked_run(project, attacked):
    assert {f"worker{worker}: {SHOWN}" for worker in (1, 2)} <= set(attacked.followed.splitlines()), attacked.followed
    (project.node(2, "attacked") / "workers" / "worker2" / "exit.json").write_text('["no end"]')
    status = project.play("status", "run=attacked").stdout
    assert "attacked: SUCCEEDED" in status
    assert re.search(r"worker1 .* done ", status), status
    assert 'exit.json: ["no end"] is not what a worker writes' in " ".join(status.split())
    assert "A step in milliseconds (median of the profiled steps)" in status
    assert "forward/backward" in status
    assert printable(status)


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
    for worker, environment in enumerate(attacked.environments, 1):
        folder = project.node(worker, "attacked") / "workers" / f"worker{worker}" / "tmp"
        assert f"TMPDIR={folder}\0" in environment
        assert not folder.exists()


def places(project: LocalProject, name: str) -> list[Path]:
    """Where a run has files."""
    return [path for path in (project.run(name), *(project.node(worker, name) for worker in (1, 2))) if path.exists()]


@EXHAUSTIVE
def test_state_of_a_forgotten_run_is_refused(project, pictures, attacked, tmp_path):
    shutil.move(project.run("attacked"), tmp_path / "attacked")
    try:
        done = project.play("train", "run=attacked", f"dataset={pictures}", *OPTIONS, check=False)
    finally:
        shutil.rmtree(project.run("attacked"), ignore_errors=True)
        shutil.move(tmp_path / "attacked", project.run("attacked"))
    assert done.returncode != 0
    assert "worker1, worker2: the training state of an older run=attacked is in runs/attacked under worker_root" in done.stdout


def test_run_is_deleted_everywhere(project, attacked):
    assert len(places(project, "attacked")) == 3
    assert "attacked: deleted" in project.play("playbooks/delete_run", "run=attacked").stdout
    assert places(project, "attacked") == []


def seconds(shown: str) -> int:
    """`1:15` as 75."""
    minutes, rest = shown.split(":")
    return int(minutes) * 60 + int(rest)


@EXHAUSTIVE
def test_time_from_enter_is_told(project, pictures):
    begun = time.monotonic()
    done = project.play("train", "run=timed", f"dataset={pictures}", *OPTIONS)
    by_the_clock = time.monotonic() - begun
    shown = re.search(r"time +(\S+) from Enter to this result, (\S+) of it training with .* \((\S+) before, (\S+) after\)", done.stdout)
    assert shown, done.stdout
    whole, *parts = map(seconds, shown.groups())
    # Each is rounded.
    assert whole <= by_the_clock + 1
    assert abs(sum(parts) - whole) <= 2
    launch = project.summary("timed")["launch"]
    assert 0 < launch["seconds_training"] < launch["seconds_from_enter"] <= by_the_clock
    assert done.stdout.count("Next\n") == 1
    detached = project.play("train", "run=timed", "epochs=5", "detach=true")
    assert detached.stdout.count("Next\n") == 1, detached.stdout
    again = project.play("train", "run=timed").stdout
    # Its workers may have ended before this command began.
    whole = r"time +\S+ (from Enter to the end of the last worker|of the chief's process), .*; all 2 launches trained "
    assert re.search(whole, again), again
