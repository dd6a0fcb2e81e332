"""Supervisors as real processes that meet on this machine; their workers are a few lines of Python that do as a file says."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ports import free_ports
from tests.project import await_until
from trainer.errors import PREEMPTED
from trainer.supervision.child import MARK, Patience, Pulse
from trainer.supervision.policy import Elasticity, Limits
from trainer.supervision.supervisor import DOWN, FILE, HANGUP_S, MADE_ROOM, REJOINING, SIGNALLED, STANDING_BY, Asked, Post, Supervisor
from trainer.telemetry import read_records

ROOT = Path(__file__).parents[4]
WORKER = """
import os, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGTERM, lambda *_: None if os.path.exists({own!r} + "/deaf") else os._exit(42))
from trainer.metrics import Metrics
from trainer.supervision.child import LET_IN, ROOM, die_with_parent
generation, parent, elapsed = int(sys.argv[2]), int(sys.argv[4]), float(sys.argv[6])
die_with_parent(parent)
own, peers = {own!r}, {peers!r}
metrics = Metrics(__import__("pathlib").Path(own) / "metrics.jsonl")
metrics.step = 10 * generation
def make_room(*_):
    open(f"{{own}}/asked", "w").close()
    for folder in () if os.path.exists(f"{{own}}/busy") else (own, *peers):
        part = f"{{folder}}/.do-{{os.getpid()}}"
        open(part, "w").write("175")
        os.replace(part, f"{{folder}}/do-{{generation}}")
signal.signal(LET_IN, make_room)
starts = os.path.exists(f"{{own}}/start-{{generation}}")
metrics.phase("joining" if starts else "training")
metrics.heartbeat()
open(f"{{own}}/cluster-{{generation}}", "w").write(os.environ["TF_CONFIG"])
open(f"{{own}}/elapsed-{{generation}}", "w").write(str(elapsed))
open(f"{{own}}/up-{{generation}}", "w").write(str(os.getpid()))
def order(folder):
    try:
        return int(open(f"{{folder}}/do-{{generation}}").read())
    except (OSError, ValueError):
        return None
def ended(folder):
    try:
        pid = int(open(f"{{folder}}/up-{{generation}}").read())
    except (OSError, ValueError):
        return False
    try:
        return open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
TOGETHER = {{0: "SUCCEEDED", 42: "PREEMPTED", 142: "CANCELLED", 175: ROOM}}
while True:
    if os.path.exists(f"{{own}}/steps"):
        metrics.step += 1
        metrics.heartbeat()
    code = order(own)
    if code is not None:
        # 142 stands for 42 at a request of somebody's, 175 for 75 to make room for a host.
        if code in TOGETHER:
            metrics.phase("ended", TOGETHER[code])
        os._exit(code % 100)
    if starts:
        time.sleep(0.02)
        continue
    if any(order(peer) not in (None, *TOGETHER) for peer in peers):
        os._exit(75)
    for peer in peers:
        # Who ended by an order had it written before.
        if ended(peer) and order(peer) not in TOGETHER:
            os._exit(75)
    time.sleep(0.02)
"""


NAMES = ("first", "second", "third")


def alone(folder, elastic=None):
    """The post of a supervisor in this process."""
    limits, patience = Limits(5, 5), Patience(60.0, 60.0)
    addresses = [("127.0.0.1", port) for port in range(3)]
    return Post(folder, 0, NAMES, 3, NAMES, addresses, b"", "l", [], [], [], [], limits, patience, 600.0, elastic)


STANDBY = """
import json, os, sys
own = {own!r}
open(own + "/standby", "w").write(str(os.getpid()))
given = json.loads(open(int(sys.argv[2]), "rb").read())
os.execve(sys.executable, [sys.executable, own + "/worker.py", *given["arguments"]], given["environment"])
"""


class Run:
    """Two supervisors, or three, and spares; with `standby` each has a process that becomes the next worker, and workers make steps."""

    def __init__(self, folder, workers=2, spares=0, standby=False, steps=False, **options):
        self.standby, self.workers = standby, workers
        self.names = NAMES[: workers + spares]
        self.folders = [folder / name for name in self.names]
        self.ports = free_ports(workers + spares)
        self.options = {"max-restarts": 5, "max-restarts-per-hour": 5, "rejoin-wait": 20, "silence": 60, "hang": 60} | options
        self.secret = secrets.token_hex(32)
        for own in self.folders:
            own.mkdir()
            (own / "secret").write_text(self.secret)
            peers = [str(one) for one in self.folders if one != own]
            (own / "standby.py").write_text(STANDBY.format(own=str(own)))
            if steps:
                (own / "steps").touch()
            (own / "worker.py").write_text(WORKER.format(own=str(own), peers=peers))
        self.processes = [self.begin(rank) for rank in range(workers + spares)]

    def begin(self, rank):
        own = self.folders[rank]
        options = [f"--{name}={value}" for name, value in self.options.items()]
        # `python -m trainer ARGUMENTS` is the worker's command line: the file stands in for it.
        program = (
            "import dataclasses, sys\n"
            "from trainer.supervision import __main__ as entry, supervisor\n"
            "supervisor.SAVE_S = 2.0\n"
            "real = entry.supervise\n"
            f"replaced = dict(program=[sys.executable, {str(own / 'worker.py')!r}], worker=[], session=[])\n"
            f"replaced |= dict(standby=[sys.executable, {str(own / 'standby.py')!r}] if {self.standby} else [])\n"
            "entry.supervise = lambda post: real(dataclasses.replace(post, **replaced))\n"
            "raise SystemExit(entry.main())\n"
        )
        argv = [sys.executable, "-c", program, f"--folder={own}", f"--rank={rank}", f"--hosts={','.join(self.names)}"]
        argv += [f"--workers={self.workers}"]
        argv += [f"--peers={','.join(f'127.0.0.1:{port}' for port in self.ports)}", f"--endpoints={','.join(self.names)}"]
        argv += ["--launch=l", "--session=s", *options, "--", "train"]
        log = (own / "log").open("ab")
        return subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)})

    def await_generation(self, number, ranks=None):
        folders = [self.folders[rank] for rank in ranks or range(self.workers)]
        for own in folders:
            await_until((own / f"up-{number}").is_file, 120, f"generation {number}")
        # Written before its content.
        await_until(lambda: all((own / f"up-{number}").read_text() for own in folders), 120, "process ids")

    def lose(self, rank):
        """Kill a supervisor for good; its worker dies with it."""
        self.processes[rank].kill()
        self.processes[rank].wait()

    def cluster(self, rank, generation):
        """TF_CONFIG of a worker."""
        return json.loads((self.folders[rank] / f"cluster-{generation}").read_text())

    def worker(self, rank, generation):
        return int((self.folders[rank] / f"up-{generation}").read_text())

    def do(self, rank, generation, code):
        part = self.folders[rank] / ".do"
        part.write_text(str(code))
        part.replace(self.folders[rank] / f"do-{generation}")

    def ends(self):
        return [process.wait(120) for process in self.processes]

    def log(self, rank):
        return (self.folders[rank] / "log").read_text()

    def records(self, rank):
        return read_records(self.folders[rank] / "metrics.jsonl")


@pytest.fixture
def begin(tmp_path):
    runs = []

    def start(**options):
        runs.append(Run(tmp_path, **options))
        runs[-1].await_generation(1)
        return runs[-1]

    yield start
    for run in runs:
        for process in run.processes:
            process.kill()
            process.wait()


def test_a_run_without_faults_ends_with_its_workers(begin):
    run = begin()
    for rank in (0, 1):
        run.do(rank, 1, 0)
    assert run.ends() == [0, 0]
    assert not any((own / FILE).exists() for own in run.folders)
    assert run.log(0) == ""


def test_a_killed_worker_and_its_peer_start_again(begin):
    run = begin()
    os.kill(run.worker(1, 1), signal.SIGKILL)
    run.await_generation(2)
    for rank in (0, 1):
        run.do(rank, 2, 0)
    assert run.ends() == [0, 0]
    words = "rank 1 (second) was killed by SIGKILL at step 10; all workers start again from the last saved state (restart 1 of this launch)"
    assert words in run.log(0)
    assert words in run.log(1)
    assert [record["text"] for record in run.records(0) if record["kind"] == "warning"] == [words], "whoever watches is told once"
    assert not [record for record in run.records(1) if record["kind"] == "warning"]
    assert REJOINING in [record["phase"] for record in run.records(1) if record["kind"] == "phase"]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_worker_that_is_lost_before_all_train_is_not_waited_for(lost, begin):
    """What starts does not look after the others: as TensorFlow, it waits for them, for minutes."""
    run = begin(workers=3)
    for own in run.folders:
        (own / "start-2").touch()
    os.kill(run.worker(1, 1), signal.SIGKILL)
    run.await_generation(2)
    os.kill(run.worker(lost, 2), signal.SIGKILL)
    run.await_generation(3)
    for rank in range(3):
        run.do(rank, 3, 0)
    assert run.ends() == [0, 0, 0]
    for rank in range(3):
        assert f"rank {lost} ({NAMES[lost]}) was killed by SIGKILL while joining; all workers start again" in run.log(rank)


def test_a_worker_that_fails_before_all_train_ends_the_run(begin):
    run = begin()
    for own in run.folders:
        (own / "start-2").touch()
    os.kill(run.worker(1, 1), signal.SIGKILL)
    run.await_generation(2)
    run.do(1, 2, 1)
    assert run.ends() == [75, 1]
    assert "rank 1 (second) ended with exit code 1 while joining; nothing starts again after that" in run.log(0)


def test_the_time_counts_from_the_launch_also_if_the_supervisor_is_another(begin):
    run = begin()
    run.lose(1)
    state = json.loads((run.folders[1] / FILE).read_text())
    state["history"]["began"] -= 1000.0
    (run.folders[1] / FILE).write_text(json.dumps(state))
    run.processes[1] = run.begin(1)
    run.await_generation(2)
    elapsed = [[float((own / f"elapsed-{generation}").read_text()) for generation in (1, 2)] for own in run.folders]
    assert elapsed[0][0] <= elapsed[0][1] < 100.0
    assert 1000.0 < elapsed[1][1] < 1100.0


def await_standby(run, rank, other_than=""):
    path = run.folders[rank] / "standby"
    await_until(lambda: path.is_file() and path.read_text() not in ("", other_than), 120, "the standby")
    return path.read_text()


def test_the_next_worker_is_the_one_that_stands_by(begin):
    run = begin(standby=True, steps=True)
    first = [await_standby(run, rank) for rank in (0, 1)]
    os.kill(run.worker(1, 1), signal.SIGKILL)
    run.await_generation(2)
    assert [str(run.worker(rank, 2)) for rank in (0, 1)] == first
    second = [await_standby(run, rank, first[rank]) for rank in (0, 1)]
    for rank in (0, 1):
        run.do(rank, 2, 0)
    assert run.ends() == [0, 0]
    assert not any(Path(f"/proc/{pid}").exists() for pid in second)


def test_a_worker_is_started_anew_if_the_one_that_stood_by_is_gone(begin):
    run = begin(standby=True, steps=True)
    gone = await_standby(run, 0)
    os.kill(int(gone), signal.SIGKILL)
    os.kill(run.worker(0, 1), signal.SIGKILL)
    run.await_generation(2)
    assert str(run.worker(0, 2)) != gone
    for rank in (0, 1):
        run.do(rank, 2, 0)
    assert run.ends() == [0, 0]


@pytest.mark.parametrize("options", [{"standby": True}, {"steps": True}])
def test_nothing_stands_by_before_the_first_steps_or_unless_asked_for(options, begin):
    """Its import must not slow the start."""
    run = begin(**options)
    os.kill(run.worker(1, 1), signal.SIGKILL)
    run.await_generation(2)
    assert not any((own / "standby").exists() for own in run.folders)


def test_a_killed_supervisor_takes_its_worker_along_and_returns(begin):
    run = begin()
    run.processes[1].kill()
    run.processes[1].wait()
    run.processes[1] = run.begin(1)
    run.await_generation(2)
    for rank in (0, 1):
        run.do(rank, 2, 0)
    assert run.ends() == [0, 0]
    assert "rank 1 (second) was lost with its supervisor, or its host restarted" in run.log(0)


def test_an_error_for_the_user_ends_the_run_and_the_other_is_told(begin):
    run = begin()
    run.do(0, 1, 1)
    assert run.ends() == [1, 75]
    assert "error: rank 0 (first) ended with exit code 1 at step 10; nothing starts again after that" in run.log(1)
    assert not (run.folders[0] / "up-2").exists()


def test_the_limit_ends_the_run(begin):
    run = begin(**{"max-restarts": 1})
    os.kill(run.worker(0, 1), signal.SIGKILL)
    run.await_generation(2)
    os.kill(run.worker(0, 2), signal.SIGKILL)
    assert run.ends() == [137, 75]
    assert "recovery.max_restarts=1 is reached" in run.log(1)


def test_who_does_not_return_ends_the_wait(begin):
    run = begin(**{"rejoin-wait": 1})
    run.processes[1].kill()
    assert run.processes[0].wait(120) == 75
    assert "not all workers came back within 1 s (recovery.rejoin_wait)" in run.log(0)


def test_a_supervisor_that_waits_can_be_asked_to_end(begin):
    run = begin()
    run.processes[1].kill()
    await_until(lambda: REJOINING in [one.get("phase") for one in run.records(0)], 120, "the wait")
    ask(run, 0)
    assert run.processes[0].wait(120) == PREEMPTED
    assert not (run.folders[0] / FILE).exists()


def ask(run, rank):
    (run.folders[rank] / MARK).touch()
    run.processes[rank].terminate()


def test_a_supervisor_passes_a_request_to_end_on(begin):
    run = begin()
    ask(run, 0)
    # The stand-in for a worker has no handler: SIGTERM ends it.
    assert run.processes[0].wait(120) == PREEMPTED
    assert not (run.folders[0] / FILE).exists()


def test_somebody_at_the_terminal_may_end_it(begin):
    run = begin()
    run.processes[0].send_signal(signal.SIGINT)
    assert run.processes[0].wait(120) == PREEMPTED
    assert not (run.folders[0] / FILE).exists()
    assert (run.folders[0] / MARK).exists(), "its worker tells the others"


def test_whoever_was_asked_while_no_supervisor_was_there_starts_nothing(begin):
    run = begin()
    run.processes[1].kill()
    run.processes[1].wait()
    (run.folders[1] / MARK).touch()
    assert run.begin(1).wait(120) == PREEMPTED
    assert not (run.folders[1] / FILE).exists()


def test_a_run_that_somebody_ends_ends_everywhere_though_only_one_was_asked(begin):
    run = begin()
    for rank in (0, 1):
        run.do(rank, 1, 142)
    assert run.ends() == [PREEMPTED, PREEMPTED]
    assert not any((own / FILE).exists() for own in run.folders)


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGTERM, signal.SIGHUP], [signal.SIGHUP, signal.SIGTERM]])
@pytest.mark.parametrize("waits", [False, True])
def test_the_worker_of_a_host_that_goes_down_goes_on_after_its_restart(begin, signals, waits):
    """A host that goes down ends all processes, the tmux server too, in any order; another that was not signalled waits for it."""
    run = begin()
    if waits:
        run.processes[0].kill()
        await_until(lambda: REJOINING in phases(run, 1), 120, "the wait")
    for number in signals:
        run.processes[1].send_signal(number)
    run.do(0, 1, 42)
    assert run.processes[1].wait(120) == PREEMPTED
    assert phases(run, 1)[-1] == DOWN
    if waits:
        run.processes[0] = run.begin(0)
    await_until(lambda: REJOINING in phases(run, 0), 120, "the wait")
    run.processes[1] = run.begin(1)
    run.await_generation(2)
    for rank in (0, 1):
        run.do(rank, 2, 0)
    assert run.ends() == [0, 0]
    assert "was lost with its supervisor, or its host restarted; all workers start again" in run.log(0)


@pytest.mark.parametrize("saves", [True, False])
def test_a_session_that_is_ended_by_hand_takes_its_worker_along(begin, saves):
    """The mark says that its end is wanted; a worker that does not save its state in time is killed."""
    run = begin()
    for own in run.folders:
        (own / MARK).touch()
    for rank in (0, 1):
        if not saves:
            (run.folders[rank] / "deaf").touch()
        run.processes[rank].send_signal(signal.SIGHUP)
    assert run.ends() == [PREEMPTED, PREEMPTED]
    assert [phases(run, rank)[-1] for rank in (0, 1)] == ["ended", "ended"]
    assert not any((own / FILE).exists() for own in run.folders)
    ends = [json.loads((own / "exit.json").read_text()) for own in run.folders]
    assert [(end["host"], end["rank"], end["exit_code"]) for end in ends] == [("first", 0, PREEMPTED), ("second", 1, PREEMPTED)]
    assert not any(Path(f"/proc/{run.worker(rank, 1)}").exists() for rank in (0, 1))


def test_only_a_signal_that_stays_alone_means_that_the_session_is_gone(tmp_path):
    """A host that goes down sends another; until then the worker may save its state."""
    supervisor = Supervisor(alone(tmp_path))
    pulse = Pulse(tmp_path / "metrics.jsonl")
    supervisor._hang_up()
    assert supervisor._look(pulse) == ""
    supervisor._hung_up_at -= HANGUP_S
    assert supervisor._look(pulse) == "lost its tmux server"
    supervisor._stop(signal.SIGTERM, None)
    assert supervisor._look(pulse) == ""


def test_a_request_reaches_who_waits_though_it_comes_while_a_task_runs():
    """asyncio keeps an Exception of a task until somebody asks for its result."""

    async def ask():
        raise Asked

    async def wait():
        asking = asyncio.create_task(ask())
        await asyncio.sleep(20)
        await asking

    with pytest.raises(Asked):
        asyncio.run(wait())


def phases(run, rank):
    return [record["phase"] for record in run.records(rank) if record["kind"] == "phase"]


def test_a_worker_that_somebody_kills_politely_starts_again(begin):
    """Nobody asked for the run's end: an early out-of-memory killer sends SIGTERM, too."""
    run = begin()
    for rank in (0, 1):
        run.do(rank, 1, 42)
    run.await_generation(2)
    for rank in (0, 1):
        run.do(rank, 2, 0)
    assert run.ends() == [0, 0]
    assert f"{SIGNALLED}, at step 10; all workers start again" in run.log(0)


ELASTIC = {"elastic-wait": 2, "min-workers": 1}


def test_every_worker_is_told_its_cluster(begin):
    run = begin()
    for rank in (0, 1):
        assert run.cluster(rank, 1) == {"cluster": {"worker": ["first", "second"]}, "task": {"type": "worker", "index": rank}}


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_two_of_three_go_on_without_a_lost_host(lost, begin):
    """Also without the chief: who comes first after it takes its rank."""
    run, others = begin(workers=3, **ELASTIC), [rank for rank in range(3) if rank != lost]
    run.lose(lost)
    run.await_generation(2, others)
    for index, rank in enumerate(others):
        cluster = {"worker": [NAMES[other] for other in others]}
        assert run.cluster(rank, 2) == {"cluster": cluster, "task": {"type": "worker", "index": index}}
        run.do(rank, 2, 0)
    assert [run.processes[rank].wait(120) for rank in others] == [0, 0]
    words = f"rank {lost} ({NAMES[lost]}) did not come back; 2 of 3 workers start again from the last saved state"
    warnings = [[one["text"] for one in run.records(rank) if one["kind"] == "warning"] for rank in others]
    assert len(warnings[0]) == 1, "only the first rank records the warning"
    assert words in warnings[0][0]
    assert not warnings[1]


def test_a_host_that_is_back_in_time_is_waited_for(begin):
    run = begin(workers=3, **ELASTIC | {"elastic-wait": 15, "rejoin-wait": 60})
    run.lose(2)
    run.processes[2] = run.begin(2)
    run.await_generation(2)
    assert run.cluster(2, 2)["task"]["index"] == 2


def test_a_second_fault_does_not_wait_for_the_host_that_was_lost_before(begin):
    run = begin(workers=3, **ELASTIC | {"elastic-wait": 15, "rejoin-wait": 60})
    run.lose(1)
    run.await_generation(2, (0, 2))
    began = time.monotonic()
    os.kill(run.worker(2, 2), signal.SIGKILL)
    run.await_generation(3, (0, 2))
    assert time.monotonic() - began < 15
    assert run.cluster(2, 3)["cluster"] == {"worker": ["first", "third"]}


def test_who_waited_alone_waits_for_the_rest_once_another_comes(monkeypatch, tmp_path):
    """Otherwise it would take the first that comes away from those that train, or that come a moment later."""
    supervisor, now = Supervisor(alone(tmp_path, Elasticity(wait=60.0, least=1))), 0.0
    monkeypatch.setattr("trainer.supervision.supervisor.time.monotonic", lambda: now)
    steps = [(0, {0}, False), (500, {0}, False), (501, {0, 2}, False), (550, {0, 2}, False), (562, {0, 2}, True), (563, {0}, False)]
    for now, there, goes_on in steps:  # noqa: B007 - the clock reads it
        assert supervisor._enough(there) == goes_on


@pytest.mark.parametrize(("options", "lost", "code"), [({}, 0, 75), ({"min-workers": 2}, 1, 75)])
def test_too_few_wait_and_then_end(options, lost, code, begin):
    """Of two, only the first may go on alone: the other could be behind a broken network."""
    run = begin(**ELASTIC | {"rejoin-wait": 3} | options)
    run.lose(lost)
    assert run.processes[1 - lost].wait(120) == code
    least = options.get("min-workers", 1)
    expected = f"not enough of the 2 workers (at least {least}, and more than half or half with first) came back within 3 s"
    assert expected in run.log(1 - lost)


def test_the_first_of_two_goes_on_alone(begin):
    run = begin(**ELASTIC)
    run.lose(1)
    run.await_generation(2, [0])
    run.do(0, 2, 0)
    assert run.processes[0].wait(120) == 0


def test_an_error_for_the_user_ends_the_others_though_a_host_is_lost(begin):
    run = begin(workers=3, **ELASTIC)
    run.do(0, 1, 1)
    run.lose(2)
    assert [run.processes[rank].wait(120) for rank in (0, 1)] == [1, 75]
    assert "nothing starts again after that" in run.log(1)


@pytest.mark.parametrize("lost", [0, 2])
def test_a_lost_host_joins_again_when_it_is_back(lost, begin):
    run, others = begin(workers=3, **ELASTIC), [rank for rank in range(3) if rank != lost]
    run.lose(lost)
    run.await_generation(2, others)
    run.processes[lost] = run.begin(lost)
    run.await_generation(3)
    assert run.cluster(lost, 3)["cluster"] == {"worker": [*NAMES]}
    for rank in range(3):
        run.do(rank, 3, 0)
    assert run.ends() == [0, 0, 0]
    for rank in range(3):
        assert f"{MADE_ROOM}, at step 20; all workers start again from the last saved state (restart 2 of this launch)" in run.log(rank)


def test_a_lost_host_that_is_back_at_the_end_is_told_so(begin):
    run = begin(workers=3, **ELASTIC | {"rejoin-wait": 60})
    run.lose(2)
    run.await_generation(2, (0, 1))
    for rank in (0, 1):
        (run.folders[rank] / "busy").touch()
    run.processes[2] = run.begin(2)
    await_until(lambda: any((run.folders[rank] / "asked").exists() for rank in (0, 1)), 120, "the request")
    for rank in (0, 1):
        run.do(rank, 2, 0)
    assert run.ends() == [0, 0, 75]
    assert "error: the others have ended the run without this host" in run.log(2)


def await_spare(run, rank, waits=1):
    """Until it has been standing by so often."""
    await_until(lambda: (run.folders[rank] / "metrics.jsonl").is_file() and phases(run, rank).count(STANDING_BY) == waits, 120, "the spare")


def test_a_spare_takes_the_place_of_a_lost_worker(begin):
    run = begin(workers=2, spares=1, **ELASTIC)
    await_spare(run, 2)
    run.lose(1)
    run.await_generation(2, (0, 2))
    assert run.cluster(2, 2) == {"cluster": {"worker": ["first", "third"]}, "task": {"type": "worker", "index": 1}}
    for rank in (0, 2):
        run.do(rank, 2, 0)
    assert [run.processes[rank].wait(120) for rank in (0, 2)] == [0, 0]
    words = "rank 1 (second) did not come back; rank 2 (third) takes the place of a lost host; all workers start again"
    assert all(words in run.log(rank) for rank in (0, 2))


@pytest.mark.parametrize(("order", "code"), [(0, 0), (142, PREEMPTED)])
def test_a_spare_waits_behind_the_doors_of_a_run_that_has_lost_nobody_and_ends_with_it(begin, order, code):
    run = begin(workers=2, spares=1, **ELASTIC)
    await_spare(run, 2)
    os.kill(run.worker(1, 1), signal.SIGKILL)
    run.await_generation(2)
    assert run.cluster(1, 2)["cluster"] == {"worker": ["first", "second"]}
    await_visit(run, 2, (0, 1))
    assert not any((run.folders[rank] / "asked").exists() for rank in (0, 1)), "nobody makes room for it"
    for rank in (0, 1):
        run.do(rank, 2, order)
    assert run.ends() == [code, code, 0]
    assert not (run.folders[2] / "up-1").exists()
    assert "error" not in run.log(2)


def await_visit(run, rank, others):
    """Until a supervisor waits behind the doors of others: it has had a connection with each for a while."""

    def connections():
        pid, ports = run.processes[rank].pid, {f"{run.ports[other]:04X}": other for other in others}
        own = {os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir() if one.is_symlink()}
        rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
        there = [(ports.get(row[2].partition(":")[2]), row[9]) for row in rows if f"socket:[{row[9]}]" in own]
        return {(other, inode) for other, inode in there if other is not None}

    def stay():
        try:
            before = connections()
            time.sleep(0.5)
            return {other for other, _ in before & connections()} == {*others}
        except FileNotFoundError:
            return False  # a connection that ended meanwhile

    await_until(stay, 120, "the visit")


def test_a_spare_that_comes_while_one_is_lost_joins_with_the_next_epoch(begin):
    run = begin(workers=2, spares=1, **ELASTIC)
    run.lose(2)
    run.lose(1)
    run.await_generation(2, [0])
    run.processes[2] = run.begin(2)
    run.await_generation(3, (0, 2))
    assert run.cluster(2, 3)["cluster"] == {"worker": ["first", "third"]}


def test_a_worker_that_is_back_takes_its_place_again_after_the_next_fault(begin):
    run = begin(workers=2, spares=1, **ELASTIC)
    await_spare(run, 2)
    run.lose(1)
    run.await_generation(2, (0, 2))
    run.processes[1] = run.begin(1)
    await_until(lambda: REJOINING in phases(run, 1), 120, "the wait")
    await_visit(run, 1, (0, 2))
    os.kill(run.worker(0, 2), signal.SIGKILL)
    run.await_generation(3, (0,))
    # Whoever meets the first in time.
    other = {"second": 1, "third": 2}[run.cluster(0, 3)["cluster"]["worker"][1]]
    run.await_generation(3, (0, other))
    await_visit(run, 3 - other, (0, other))
    for rank in (0, other):
        run.do(rank, 3, 0)
    assert run.ends() == ([0, 0, 0] if other == 1 else [0, 75, 0])


def test_an_error_for_the_user_ends_the_spare_too(begin):
    run = begin(workers=2, spares=1, **ELASTIC)
    await_spare(run, 2)
    run.do(0, 1, 1)
    assert run.ends() == [1, 75, 75]
    assert "nothing starts again after that" in run.log(2)


@pytest.mark.parametrize("options", [{}, {"max-restarts": 0}])
def test_a_spare_that_misses_the_end_learns_of_it(options, begin):
    """Else it would wait for minutes."""
    run = begin(workers=2, spares=1, **ELASTIC | options)
    await_spare(run, 2)
    os.kill(run.processes[2].pid, signal.SIGSTOP)
    if options:
        os.kill(run.worker(1, 1), signal.SIGKILL)
    else:
        run.do(1, 1, 1)
    assert run.processes[1].wait(120) == (137 if options else 1)
    os.kill(run.processes[2].pid, signal.SIGCONT)
    assert run.ends() == [75, 137 if options else 1, 75]
    assert "error: the others have ended the run after a fault; nothing starts again after that" in run.log(2)


def test_a_spare_can_be_asked_to_end(begin):
    run = begin(workers=2, spares=1, **ELASTIC)
    await_spare(run, 2)
    ask(run, 2)
    assert run.processes[2].wait(120) == PREEMPTED
