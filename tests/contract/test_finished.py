"""The life of a run: its logs followed while it trains, looked at when it has ended, deleted; the secret of its launch."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.contract.held import SMALL, await_held
from tests.local_project import LocalProject
from tests.project import EXHAUSTIVE, SLOWEST

OPTIONS = (SMALL[0], f"{SMALL[1]},telemetry.profile_every=4", "epochs=3")


def command_lines() -> str:
    """Of all processes of this machine."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_text(errors="replace"))
    return "".join(lines)


@pytest.fixture(scope="module")
def whole(project, pictures, tmp_path_factory) -> dict[str, str]:
    """What is printed of a run: by its command, with full output; by one that follows its logs to the end, and by one that is interrupted.

    `lines`: the command lines of this machine while it trained.
    """
    project.hold("whole", 4)
    path = tmp_path_factory.mktemp("output") / "train"
    argv = project.argv("train", "run=whole", f"dataset={pictures}", *OPTIONS, "-vvvv")
    with path.open("w") as stream:
        training = subprocess.Popen(argv, cwd=project.root, env=project.environment(), stdout=stream, stderr=stream, start_new_session=True)
    project.started.append(training)
    await_held(project, "whole", 4, training)
    lines = command_lines()
    follows = [project.start("logs", "run=whole", "follow=true", "lines=4000") for _ in range(2)]
    first = [until_line(follow, "worker2: ") for follow in follows]
    os.killpg(follows[1].pid, signal.SIGINT)
    interrupted = first[1] + rest(follows[1])[1]
    assert training.poll() is None, "Ctrl-C ended the training"
    project.release("whole")
    assert training.wait(240 * SLOWEST) == 0, path.read_text(errors="replace")[-4000:]
    code, followed = rest(follows[0])
    assert code == 0, followed
    return {"train": path.read_text(errors="replace"), "followed": first[0] + followed, "interrupted": interrupted, "lines": lines}


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


def test_logs_are_followed_to_the_end(whole):
    for line in (
        r"worker1: === launch 1, ",
        r"worker1: epoch \d+/\d+  step [\d,]+/24  [\d,]+ images/s  loss \d",
        r"worker2: epoch \d+/\d+  step ",
        r"worker1: epoch \d+/\d+ done  loss",
        r"worker2: epoch \d+/\d+ done\n",
    ):
        assert re.search(line, whole["followed"]), whole["followed"]
    assert "Only its logs are no longer shown." in whole["interrupted"]


def test_secret_is_only_in_its_workers_files(project, whole):
    """Neither with full output, nor in a command line, nor in any file of the control node."""
    files = [project.node(worker, "whole") / f"workers/worker{worker}/secret" for worker in (1, 2)]
    (secret,) = {file.read_text() for file in files}
    assert len(bytes.fromhex(secret)) == 32
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
    assert secret not in whole["train"]
    assert "run_worker.sh" in whole["train"]
    assert secret not in whole["lines"]
    assert "--run" in whole["lines"]
    holders = [path for path in project.root.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert sorted(holders) == sorted(files)


def test_status_of_a_finished_run(project, whole):
    status = project.play("status", "run=whole").stdout
    assert "whole: SUCCEEDED" in status
    assert status.count(" done ") == 2
    assert "A step in milliseconds (median of the profiled steps)" in status
    assert "forward/backward" in status


def test_logs_of_a_finished_run(project, whole):
    logs = project.play("logs", "run=whole", "lines=3").stdout
    assert "worker2: last 3 lines" in logs
    assert re.search(r"worker1: last 3 lines of worker.log\n(  epoch .*\n){2}  epoch .* done  loss", logs), logs


def places(project: LocalProject, name: str) -> list[Path]:
    """Where a run has files."""
    return [path for path in (project.run(name), *(project.node(worker, name) for worker in (1, 2))) if path.exists()]


@EXHAUSTIVE
def test_check_deletes_nothing(project, whole):
    assert "would be deleted" in project.play("playbooks/delete_run", "run=whole", "--check").stdout
    assert len(places(project, "whole")) == 3


@EXHAUSTIVE
def test_state_of_a_forgotten_run_is_refused(project, pictures, whole, tmp_path):
    shutil.move(project.run("whole"), tmp_path / "whole")
    try:
        done = project.play("train", "run=whole", f"dataset={pictures}", *OPTIONS, check=False)
    finally:
        shutil.rmtree(project.run("whole"), ignore_errors=True)
        shutil.move(tmp_path / "whole", project.run("whole"))
    assert done.returncode != 0
    assert "worker1, worker2: the training state of an older run=whole is in runs/whole under worker_root" in done.stdout


def test_run_is_deleted_everywhere(project, whole):
    assert len(places(project, "whole")) == 3
    assert "whole: deleted" in project.play("playbooks/delete_run", "run=whole").stdout
    assert places(project, "whole") == []


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
    again = project.play("train", "run=timed")
    assert re.search(r"time +\S+ from Enter to the end of the last worker, .*; all 2 launches trained ", again.stdout), again.stdout
