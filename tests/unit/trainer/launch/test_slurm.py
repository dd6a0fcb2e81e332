"""A worker that Slurm starts: its node_paths, its files, what it gives back."""

import contextlib
import errno
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from control.common.plan import Plan
from control.runs.launch import launches
from control.runs.results import outcome
from control.runs.tasks import find as find_run
from plugins.action import slurm_run
from tests.project import await_until
from tests.unit.samples import HISTORY, flip_a_bit, read_state, write_state
from trainer import cli
from trainer.common.errors import PREEMPTED, ClusterError, LockstepError
from trainer.common.plain_values import from_plain, to_plain
from trainer.data.manifest import Published
from trainer.host import sealed_files
from trainer.launch import slurm
from trainer.rundir.launch_record import LaunchRecord

NODES = ["alpha", "beta", "gamma"]
CONFIG = "seed: 1\n"
ADDRESSES = {"alpha": "10.0.0.1", "beta": "10.0.0.2", "gamma": "10.0.0.3", "self": "127.0.1.1"}


def environment(rank=1, tasks=3, **more):
    return {"SLURM_PROCID": str(rank), "SLURM_NTASKS": str(tasks), "SLURM_STEP_NODELIST": "node[1-3]", **more}


def refused(work, *arguments):
    with pytest.raises(ClusterError) as caught:
        work(*arguments)
    return str(caught.value)


def test_the_place_follows_from_the_allocation():
    allocation = slurm._allocation(environment(), lambda listed: {"node[1-3]": NODES}[listed])
    assert (allocation.rank, allocation.nodes, allocation.node, allocation.job) == (1, NODES, "beta", "")
    assert slurm._allocation(environment(SLURM_JOB_ID="7"), lambda _: NODES).job == "7"
    made = slurm.tf_config(allocation, 12345, ADDRESSES.__getitem__)
    assert made == {
        "cluster": {"worker": ["10.0.0.1:12345", "10.0.0.2:12345", "10.0.0.3:12345"]},
        "task": {"type": "worker", "index": 1},
    }


def test_names_are_expanded_by_slurm_itself(tmp_path, monkeypatch):
    (tmp_path / "scontrol").write_text('#!/bin/sh\n[ "$1 $2 $3" = "show hostnames x[1-2]" ] && printf "x1\\nx2\\n"\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert slurm._hostnames("x[1-2]") == ["x1", "x2"]


def test_what_no_srun_started_is_refused():
    assert refused(slurm._allocation, {}) == (
        "'SLURM_PROCID': not set as srun sets it; this command is started by srun, one task per node (train.sbatch)"
    )
    shown = refused(slurm._allocation, environment(tasks=6), lambda _: NODES)
    assert shown == "SLURM_NTASKS=6 on 3 nodes (node[1-3]): one worker per node; ask for --ntasks-per-node=1"


def test_names_of_no_address_are_refused():
    """Names that mean no address or the node itself are refused."""

    def unknown(_):
        raise socket.gaierror("Name or service not known")

    allocation = slurm.Allocation(0, ["self"])
    assert "self resolves to 127.0.1.1, which no other node reaches" in refused(slurm.tf_config, allocation, 1, ADDRESSES.__getitem__)
    assert "self does not resolve (Name or service not known)" in refused(slurm.tf_config, allocation, 1, unknown)


@pytest.fixture
def node_paths(tmp_path, port):
    job = tmp_path / "shared" / "run1"
    job.mkdir(parents=True)
    (job / "config.yml").write_text(CONFIG)
    (job / "run.json").write_text('{"id": "this", "workers": 1}')
    published, sha256 = Published(tmp_path / "packs", "f" * 64), hashlib.sha256(CONFIG.encode()).hexdigest()
    made = slurm.NodePaths(job, tmp_path / "root", published, sha256, tmp_path / "caches", port, 1, 0, 300.0)
    (made.run / "workers" / "alpha").mkdir(parents=True)
    (made.run / "run.json").write_text('{"id": "this", "workers": 1}')
    return made


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def alone(monkeypatch):
    """This process is the only task of a job."""
    monkeypatch.setattr(slurm, "_allocation", lambda: slurm.Allocation(0, ["alpha"], "31", "2"))
    monkeypatch.setattr(slurm, "tf_config", lambda allocation, port: {"task": {"index": allocation.rank}})
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def starts(alone, monkeypatch):
    """Makes a Python program the worker of this process."""

    def make(program, *arguments):
        monkeypatch.setattr(slurm, "worker", lambda node_paths, allocation: [sys.executable, "-c", program, *map(str, arguments)])

    return make


def ended(node_paths):
    return json.loads((node_paths.job / "workers" / "alpha" / "exit.json").read_text())


def log(node_paths):
    return (node_paths.job / "workers" / "alpha" / "worker.log").read_text()


@pytest.mark.parametrize("rank", [0, 1])
def test_chief_takes_newest_state_and_each_its_memory(rank, node_paths):
    own = node_paths.run / "workers" / "alpha"
    write_state(node_paths.job / "state" / "step-000000020.npz", "newer")
    write(node_paths.job / "history.csv", "epoch")
    write_state(node_paths.run / "state" / "step-000000010.npz", "older")
    write_state(node_paths.job / "workers" / "alpha" / "memory" / "step-000000020.npz", "memory")
    write(own / "exit.json", "{}")
    slurm._take(node_paths, slurm.Allocation(rank, ["alpha", "alpha"]), own)
    assert (node_paths.run / "config.yml").read_text() == "seed: 1\n"
    assert (node_paths.run / "state" / "step-000000020.npz").exists() == (rank == 0)
    assert (node_paths.run / "history.csv").exists() == (rank == 0)
    assert read_state(own / "memory" / "step-000000020.npz") == "memory"
    assert not (own / "exit.json").exists()


def test_earlier_jobs_records_are_put_aside(node_paths):
    own = node_paths.run / "workers" / "alpha"
    for job, there, text in (("7", False, "first"), ("7", True, "first"), ("8", False, "second")):
        slurm._take(node_paths, slurm.Allocation(0, ["alpha"], job), own)
        assert (own / "metrics.jsonl").exists() == there
        write(own / "metrics.jsonl", text)
    assert (own / "metrics.jsonl").read_text() == "second"
    assert (own / "metrics-7.jsonl").read_text() == "first"


@pytest.mark.parametrize("there", ['{"id": "deleted", "workers": 3}', '{"id": ""}', None])
def test_older_run_of_that_name_is_put_aside(there, node_paths, starts):
    """What an older run of that name left on a node is put aside."""
    (node_paths.run / "run.json").unlink()
    if there:
        write(node_paths.run / "run.json", there)
    write(node_paths.run / "state" / "step-000000900.npz", "older run's")
    write(node_paths.run.with_name(f"{node_paths.run.name}.before-1") / "state" / "step-000000001.npz", "still older")
    starts("")
    assert slurm.main(node_paths) == 0
    assert not (node_paths.run / "state").exists()
    aside = node_paths.run.with_name(f"{node_paths.run.name}.before-2")
    assert (aside / "state" / "step-000000900.npz").read_text() == "older run's"
    write_state(node_paths.run / "state" / "step-000000005.npz", "own")
    assert slurm.main(node_paths) == 0
    assert (node_paths.run / "state" / "step-000000005.npz").exists()


@pytest.mark.parametrize(("name", "there"), [("cluster.json", '{"id": "this"}'), ("run.json", "")])
def test_what_this_run_left_stays(name, there, node_paths):
    """What this run left stays also where a crash tore its name."""
    (node_paths.run / "run.json").unlink()
    write(node_paths.run / name, there)
    slurm._put_others_aside(node_paths)
    assert node_paths.run.is_dir()


@pytest.mark.parametrize("another", [True, False])
def test_nothing_is_put_aside_beside_a_live_run(node_paths, alone, another):
    """Another run may be alive in it, or another program has the port: the log says why the task can't begin, and its end is given back."""
    if another:
        write(node_paths.run / "run.json", '{"id": "another"}')
    with socket.create_server(("", node_paths.port)):
        assert slurm.main(node_paths) == 1
    assert [path.name for path in node_paths.root.glob("runs/*")] == [node_paths.run.name]
    assert (node_paths.run / "workers" / "alpha" / "exit.json").exists() is not another
    expected = {"host": "alpha", "rank": 0, "nodes": 1, "exit_code": 1, "job": "31", "step": "2"}
    assert {key: ended(node_paths)[key] for key in expected} == expected
    assert ended(node_paths)["started_at"] <= ended(node_paths)["ended_at"]
    *header, line = log(node_paths).splitlines()
    assert [one.startswith("=== launch 31.2, ") for one in header] == ([] if another else [True])
    assert line.startswith(f"error: port {node_paths.port}: Address already in use; ")
    assert f"(pid {os.getpid()}, user " in line
    assert line.endswith(" has it on this node. Fix: end that, or -e slurm_port=N")


def test_changed_configuration_of_a_job_is_not_trained(node_paths, alone):
    """A configuration that somebody changed after the job was submitted is not trained.

    It may hold the source of a person's own model, and every node writes the folder it lies in.
    """
    write(node_paths.job / "config.yml", "seed: 1\nmodel: {name: own, source: 'import os'}\n")
    assert slurm.main(node_paths) == 1
    assert f"{node_paths.job / 'config.yml'} has SHA-256" in log(node_paths)
    assert f"Fix: ansible-playbook playbooks/slurm.yml -e run={node_paths.job.name} writes it anew" in log(node_paths)


def test_learning_rate_takes_the_planned_node_count(node_paths):
    """A learning rate that depends on the number of nodes takes the planned one."""
    write(node_paths.run / "config.yml", CONFIG)
    slurm._check_number(node_paths, 8)
    write(node_paths.run / "config.yml", "schedule: {scaling: linear}\n")
    slurm._check_number(node_paths, 1)
    assert refused(slurm._check_number, node_paths, 8) == (
        "8 nodes: this run was planned for 1, and schedule.scaling=linear makes its learning rate depend on that; "
        "submit it with --nodes=1, or plan a run with workers=8"
    )


def test_an_older_state_is_not_taken(node_paths):
    write_state(node_paths.job / "state" / "step-000000010.npz", "older")
    write_state(node_paths.run / "state" / "step-000000020.npz", "newer")
    slurm._take(node_paths, slurm.Allocation(0, ["alpha"]), node_paths.run / "workers" / "alpha")
    assert [path.name for path in (node_paths.run / "state").iterdir()] == ["step-000000020.npz"]


@pytest.mark.parametrize("rank", [0, 1])
def test_what_was_made_is_given_back_once(rank, node_paths):
    """What was made is given back once and old states go."""
    own, allocation = node_paths.run / "workers" / "alpha", slurm.Allocation(rank, ["alpha", "alpha"])
    write(own / "exit.json", "{}")
    write_state(node_paths.run / "state" / "step-000000020.npz", "new")
    write(node_paths.run / "checkpoints" / "epoch-0001.keras", "weights")
    write(node_paths.run / "checkpoints" / ".part-x.keras", "half")
    write_state(node_paths.job / "state" / "step-000000010.npz", "old")
    slurm._give_back(node_paths, allocation, own)
    assert (node_paths.job / "workers" / "alpha" / "exit.json").read_text() == "{}"
    chief = rank == 0
    assert sorted(path.name for path in (node_paths.job / "state").iterdir()) == [f"step-0000000{20 if chief else 10}.npz"]
    assert [path.name for path in node_paths.job.glob("checkpoints/*")] == (["epoch-0001.keras"] if chief else [])
    if chief:
        before = (node_paths.job / "checkpoints" / "epoch-0001.keras").stat().st_ino
        slurm._give_back(node_paths, allocation, own)
        assert (node_paths.job / "checkpoints" / "epoch-0001.keras").stat().st_ino == before


def test_damaged_state_is_neither_given_back_nor_taken(node_paths):
    own, allocation = node_paths.run / "workers" / "alpha", slurm.Allocation(0, ["alpha"])
    for step in (10, 20):
        write_state(node_paths.run / "state" / f"step-0000000{step}.npz")
    slurm._give_back(node_paths, allocation, own)
    write_state(node_paths.run / "state" / "step-000000030.npz")
    (node_paths.run / "state" / "step-000000010.npz").unlink()
    flip_a_bit(node_paths.run / "state" / "step-000000030.npz")
    slurm._give_back(node_paths, allocation, own)
    assert sorted(path.name for path in (node_paths.job / "state").iterdir()) == ["step-000000010.npz", "step-000000020.npz"]
    flip_a_bit(node_paths.run / "state" / "step-000000020.npz")
    slurm._take(node_paths, allocation, own)
    assert sealed_files.newest_whole(node_paths.run / "state")[0] == "step-000000020.npz"


def test_unkept_snapshots_leave_the_shared_folder(node_paths):
    """Snapshots that are not kept go from the shared folder too."""
    own, allocation = node_paths.run / "workers" / "alpha", slurm.Allocation(0, ["alpha"])
    write(node_paths.run / "config.yml", "checkpoint: {snapshots: last}\n")
    write(node_paths.run / "history.csv", ",".join(HISTORY) + "\n" + ",".join(["2"] + ["0.5"] * 7) + "\n")
    write(node_paths.job / "checkpoints" / "epoch-0001.keras", "old")
    write(node_paths.run / "checkpoints" / "epoch-0002.keras", "new")
    slurm._give_back(node_paths, allocation, own)
    assert [path.name for path in (node_paths.job / "checkpoints").iterdir()] == ["epoch-0002.keras"]


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("import os; print(os.environ['TF_CONFIG'])", 0),
        ("raise SystemExit(75)", 75),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
    ],
)
def test_workers_end_is_always_given_back(script, code, node_paths, starts):
    """Whatever becomes of the worker its end is given back."""
    starts(script)
    assert slurm.main(node_paths) == code
    assert ended(node_paths)["exit_code"] == code
    assert json.loads((node_paths.job / "workers" / "alpha" / "tf_config.json").read_text()) == {"task": {"index": 0}}
    if code == 0:
        assert log(node_paths).splitlines()[1:] == ['{"task": {"index": 0}}']


def test_what_nobody_foresaw_leaves_an_end_too(node_paths, alone, monkeypatch):
    def fail(*_):
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(slurm, "_train", fail)
    with pytest.raises(RuntimeError, match="unforeseen"):
        slurm.main(node_paths)
    assert ended(node_paths)["exit_code"] == 1


def test_a_wish_to_end_is_passed_on(node_paths, starts):
    starts("import signal; signal.signal(signal.SIGTERM, lambda *_: exit(42)); print('ready', flush=True); signal.pause()")
    written = node_paths.run / "workers" / "alpha" / "worker.log"

    def tell():
        await_until(lambda: written.is_file() and "ready" in written.read_text(), 60, "the worker is ready")
        os.kill(os.getpid(), signal.SIGTERM)

    teller = threading.Thread(target=tell)
    teller.start()
    assert slurm.main(node_paths) == 42
    teller.join()


def test_early_wish_is_passed_on_to_the_worker(alone):
    """A wish that came before the worker is passed on to it."""
    hold = slurm.WorkerProcess()
    os.kill(os.getpid(), signal.SIGTERM)
    assert hold.stop_asked
    with subprocess.Popen(["sleep", "60"]) as worker:
        hold.to(worker)
        assert worker.wait(60) == -signal.SIGTERM


def test_early_end_starts_no_worker(node_paths, alone, monkeypatch):
    """Told to end before anything began no worker is started."""
    monkeypatch.setattr(slurm, "_check_port", lambda port: os.kill(os.getpid(), signal.SIGTERM))
    monkeypatch.setattr(slurm, "worker", lambda node_paths, allocation: pytest.fail("started"))
    assert slurm.main(node_paths) == PREEMPTED
    assert ended(node_paths)["exit_code"] == PREEMPTED


WAITS = "import os, signal, sys; os.rename(*sys.argv[2:]); signal.pause()"
TRAINS = """import os, pathlib, sys, time
with pathlib.Path(sys.argv[1], 'metrics.jsonl').open('a') as records:
    records.write('{"kind": "steps"}')
os.rename(*sys.argv[2:])
while not pathlib.Path(sys.argv[1], 'seen').exists():
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("script", "theirs", "step", "mine"),
    [(WAITS, 1, "2", 1), (WAITS, 75, "2", 75), (WAITS, 137, "2", 75), (TRAINS, 1, "2", 0), (TRAINS, 1, "1", 0), (TRAINS, 42, "2", 0)],
)
def test_who_waits_for_a_lost_task_is_ended(script, theirs, step, mine, node_paths, starts, monkeypatch):
    """Who trains is not. A task that ended at an earlier start of the job, or because it was told to, is none to wait for."""
    own = node_paths.run / "workers" / "alpha"
    write(own / "job", "31")
    write(own / "metrics.jsonl", '{"kind": "steps"}\n')
    end = {"host": "beta", "rank": 1, "job": "31", "step": step, "exit_code": theirs}
    (beta := node_paths.job / "workers" / "beta").mkdir(parents=True)
    write(beta / "soon", json.dumps(end))
    looks, copy = [], slurm._copy

    def look(source, target):
        """The worker trains on until its task has had the time to end it."""
        looks.append((beta / "exit.json").exists())
        if sum(looks) > 2:
            (own / "seen").touch()
        copy(source, target)

    monkeypatch.setattr(slurm, "EVERY_S", 0.01)
    monkeypatch.setattr(slurm, "_copy", look)
    starts(script, own, beta / "soon", beta / "exit.json")
    assert slurm.main(node_paths) == mine
    told_text = f"beta ended with exit code {theirs} while all were to join; see its log\n" in log(node_paths)
    assert told_text == (script == WAITS)


def test_full_share_gets_the_rest_later(node_paths, alone, monkeypatch):
    own, tries = node_paths.run / "workers" / "alpha", []
    write(own / "job", "31")
    write(own / "metrics.jsonl", '{"kind": "steps"}\n')

    def fail_first(source, target):
        tries.append(source)
        if len(tries) == 1:
            raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(slurm, "_copy", fail_first)
    over = SimpleNamespace(wait=lambda _: len(tries) > 2)
    slurm._report(node_paths, slurm._allocation(), own, SimpleNamespace(gave_up=None), over)
    assert len(tries) == 3


def test_job_is_untold_until_its_end_was_seen(tmp_path):
    assert launches.uncollected_job(LaunchRecord()) == launches.uncollected_job(LaunchRecord(slurm={"folder": "/x"})) == ""
    write(tmp_path / "cluster.json", json.dumps({"run": "r", "slurm": {"job": "7", "folder": "/x"}}))
    assert launches.uncollected_job(LaunchRecord.read(tmp_path)) == "7"
    with pytest.raises(LockstepError) as caught:
        launches.check_job("r", LaunchRecord.read(tmp_path))
    assert str(caught.value) == (
        "run=r: job 7 of Slurm trains it, or did, and its results are not here yet; first: ansible-playbook playbooks/slurm.yml -e run=r"
    )
    launches.mark_collected(tmp_path)
    assert LaunchRecord.read(tmp_path) == from_plain(LaunchRecord, {"run": "r", "slurm": {"job": "7", "folder": "/x", "told": True}})
    assert launches.uncollected_job(LaunchRecord.read(tmp_path)) == ""
    launches.check_job("r", LaunchRecord.read(tmp_path))


def test_ends_are_those_of_this_job_by_rank(tmp_path):
    for at, (node, rank, job) in enumerate((("d", 1, None), ("c", 1, "7"), ("a", 2, "10"), ("b", 0, "10"))):
        write(
            tmp_path / "workers" / node / "exit.json",
            json.dumps({"rank": rank, "exit_code": 0, "ended_at": at, **({"job": job} if job else {})}),
        )
    write(tmp_path / "workers" / "e" / "exit.json", '["what a hostile node writes"]')
    assert [end["rank"] for end in slurm_run.ends(tmp_path, "10")] == [0, 2]
    assert [end["rank"] for end in slurm_run.ends(tmp_path, "9")] == [0, 2], "a person submitted the script again"
    assert slurm_run.ends(tmp_path, "11") == []
    assert slurm_run.ends(tmp_path / "none", "7") == []


@pytest.mark.parametrize(
    ("listing", "job"),
    [("", ""), ('"job": "9"\n"job": "10"\n', ""), ('"job": "9"\n"job":"12"\n"job": "11"\n', "12"), ('"job": "100"\n', "100")],
)
def test_job_submitted_by_a_person_is_found(listing, job):
    """A job that a person submitted after the recorded one is found."""
    assert slurm_run.later(listing, "10") == job


class Followed(slurm_run.ActionModule):
    """The action of `playbooks/slurm.yml` with a Slurm that is played: what it does is kept in `did`."""

    def __init__(self, folder, recorded_job, queue, ends, ended, steps):
        plan = to_plain(Plan(run="r", folder=folder, counts={"total_steps": 100}))
        arguments = {"plan": plan, "job": "/mnt/r", "name": "r", "script": "", "published": {}, "detach": False}
        self._task = SimpleNamespace(args=arguments)
        self.did, self._ends, self._ended, self._queue = [], ends, ended, queue
        write(folder / "summary.json", json.dumps({"state": "CANCELLED", "steps": steps}))
        write(folder / "cluster.json", json.dumps({"run": "r", "slurm": recorded_job}))

    def _shell(self, script, program):
        if program == "squeue":
            assert ("command -v squeue" in script) == (not LaunchRecord.read(self.local).slurm.get("told"))
            return self._queue
        assert program == "grep"
        return self._ends

    def _refuse_others(self):
        pass

    def _record(self, published, number):
        write(self.local / "cluster.json", json.dumps({"run": "r", "slurm": {"job": number}}))
        self.did.append(f"record {number}")

    def _collect(self, number):
        self.did.append(f"collect {number}")
        launches.mark_collected(self.local)
        return [outcome.Verdict("a", 0, "ended", exit_code=self._ended)]

    def _submit(self, script):
        self.did.append("submit")
        return "30"

    def _follow(self, number, how):
        self.did.append(f"follow {number} {how}")


SUBMITTED = ["submit", "record 30", "follow 30 is submitted", "collect 30"]
JOBS = {
    "told": ({"job": "7", "told": True}, "", '"job": "7"', 0, 100, SUBMITTED),
    "queued by hand": ({"job": "7", "told": True}, "9\n", "", 0, 50, ["record 9", "follow 9 is in the queue already", "collect 9"]),
    "queued": ({"job": "7"}, "7\n", "", 0, 50, ["follow 7 is in the queue already", "collect 7"]),
    "failed": ({"job": "7"}, "", "", 1, 50, ["collect 7"]),
    "done": ({"job": "7"}, "", "", 0, 100, ["collect 7"]),
    "stopped": ({"job": "7"}, "", "", 42, 50, ["collect 7", *SUBMITTED]),
    "untold": ({"job": "7"}, "", '"job": "7"', 1, 50, ["collect 7"]),
    "untold, and by hand": ({"job": "7"}, "", '"job": "8"', 1, 50, ["record 8", "collect 8"]),
    "failed by hand": ({"job": "7", "told": True}, "", '"job": "8"', 1, 50, ["record 8", "collect 8"]),
    "stopped by hand": ({"job": "7", "told": True}, "", '"job": "8"', 42, 50, ["record 8", "collect 8", *SUBMITTED]),
}


@pytest.mark.parametrize(("job", "queue", "ends", "ended", "steps", "did"), JOBS.values(), ids=JOBS)
def test_finished_job_is_fetched_before_another(job, queue, ends, ended, steps, did, tmp_path, monkeypatch):
    """What a job came to is fetched before another is submitted."""
    monkeypatch.setattr(ActionBase, "run", lambda *_: {})
    action = Followed(tmp_path, job, queue, ends, ended, steps)
    result = action.run()
    assert action.did == did
    assert [verdict["exit_code"] for verdict in result["verdicts"]] == [ended]
    assert result.get("changed", False) == ("submit" in did)


class SharedFolder(slurm_run.ActionModule):
    """The action, with a job folder in which a run of the identity `ID` has trained."""

    def __init__(self, folder, identity):
        self._task, self.identity = SimpleNamespace(args={"plan": to_plain(Plan(run="r", folder=folder)), "job": "/mnt/r"}), identity
        self.plan, self.local, self.job = Plan(run="r", folder=folder), folder, "/mnt/r"

    def _shell(self, script, program):
        return "/mnt/r/workers" if program == "ls" else json.dumps({"id": self.identity} if self.identity else {})


@pytest.mark.parametrize(
    ("record", "identity", "is_refused"),
    [(None, "", True), (None, "a", True), ({"id": "a"}, "b", True), ({"id": "a"}, "a", False), ({}, "b", False)],
    ids=["no record, no identity", "no record", "another", "its own", "a record without an identity"],
)
def test_anothers_job_folder_is_refused(record, identity, is_refused, tmp_path):
    if record is not None:
        write(tmp_path / "cluster.json", json.dumps({"run": "r", **record}))
    expected = pytest.raises(AnsibleActionFail, match="older run of that name") if is_refused else contextlib.nullcontext()
    with expected:
        SharedFolder(tmp_path, identity)._refuse_others()


@pytest.mark.parametrize(("planned", "had", "ended", "lost"), [(3, 2, 2, False), (2, 3, 2, True), (2, None, 2, False), (2, None, 1, True)])
def test_job_is_whole_when_all_own_nodes_ended(planned, had, ended, lost):
    verdicts = [{"rank": rank, **({"nodes": had} if had else {})} for rank in range(ended)]
    assert slurm_run.is_short(verdicts, planned) == lost


@pytest.mark.parametrize(
    ("command", "state", "is_refused"),
    [
        ("stop", "SUCCEEDED", True),
        ("logs", "FAILED", True),
        ("status", "RUNNING", True),
        ("status", "SUCCEEDED", False),
        ("status", "PREEMPTED", True),
        ("evaluate", None, False),
    ],
)
def test_only_slurm_can_tell_of_a_job(command, state, is_refused, tmp_path, monkeypatch):
    monkeypatch.setattr(find_run.status, "all_runs", lambda: "all runs")
    if state:
        write(tmp_path / "summary.json", json.dumps({"state": state}))
    # A state from before the last job says nothing of that.
    record = LaunchRecord(slurm={"job": "8", "folder": "/mnt/slurm/r", "told": state != "PREEMPTED"})
    if not is_refused:
        find_run._refuse_jobs(tmp_path, command, record)
        return
    with pytest.raises(LockstepError) as caught:
        find_run._refuse_jobs(tmp_path, command, record)
    run = tmp_path.name
    assert str(caught.value) == (
        f"run={run} is job 8 of Slurm. Look: squeue --job 8; logs: /mnt/slurm/r; watch it: ansible-playbook playbooks/slurm.yml "
        f"-e run={run}; stop it, keeping its state: scancel --signal=TERM 8" + ("\n\nall runs" if command == "status" else "")
    )


def test_the_worker_is_started_like_any_other(node_paths, monkeypatch):
    argv = slurm.worker(node_paths, slurm.Allocation(1, NODES))
    assert argv[1:4] == ["-m", "trainer", "train"]
    given = dict(zip(argv[4::2], argv[5::2], strict=True))
    assert given["--run"] == str(node_paths.run)
    assert (given["--packs"], given["--manifest"]) == (str(node_paths.published.folder), "f" * 64)
    assert (given["--host"], given["--threads"], given["--start-deadline"]) == ("beta", "1", "300.0")
    monkeypatch.setattr(cli, "_train", lambda arguments: arguments.host != "beta")
    assert cli.main(argv[3:]) == 0
