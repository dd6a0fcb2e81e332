"""Faults put into trainings: the schedule, what is read from the workers' records, the table, what is refused."""

import dataclasses
import json
import os
import shutil
import subprocess
import time
from types import SimpleNamespace

import pytest

from benchmarks.chaos import faults, injection
from benchmarks.chaos.chaos_results import Report
from benchmarks.chaos.faults import CHIEF, FAULTS, Scene
from benchmarks.chaos.injection import STEPS_PER_CALL, Begun, Injection, schedule
from benchmarks.shared import benchmark
from benchmarks.tasks import run_chaos
from control.common import project
from tests.unit.conftest import ROOT
from trainer.common.errors import LockstepError
from trainer.rundir.launch_record import Host
from trainer.rundir.phases import Phase

NAMES = [f"node{number}" for number in range(1, 6)]
HOSTS = [Host(name=name, address=f"10.0.0.{number}") for number, name in enumerate(NAMES, 1)]
BEGUN = Begun(Injection(1, 0, "worker-killed", "node3", 60), 100.0, 100.5)


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(project, "RUNS", tmp_path / "runs")
    return tmp_path


def step(t, number):
    return {"t": t, "kind": "steps", "step": number}


def phase(t, name):
    return {"t": t, "kind": "phase", "phase": name, "note": ""}


def start(t):
    """The phases of a worker that starts, a second each after the first."""
    return [phase(t, "starting"), phase(t + 5, "building"), phase(t + 7, "restoring"), phase(t + 8, "training")]


# --- the schedule


def test_a_round_has_every_fault_once_and_a_seed_gives_it_again():
    drawn = schedule(list(FAULTS), NAMES, 1, 7, 100)
    assert sorted(one.fault for one in drawn) == sorted(FAULTS)
    assert [one.due for one in drawn] == [injection.FIRST + 100 * place for place in range(len(FAULTS))]
    assert run_chaos._steps({"faults": list(FAULTS), "spacing": 100}) == drawn[-1].due + 100
    assert drawn == schedule(list(FAULTS), NAMES, 1, 7, 100)
    assert drawn != schedule(list(FAULTS), NAMES, 2, 7, 100)
    assert drawn != schedule(list(FAULTS), NAMES, 1, 8, 100)
    assert [one.host == NAMES[0] for one in drawn] == [FAULTS[one.fault][1] == CHIEF for one in drawn]


# --- what the records say


def test_a_restart_is_taken_apart():
    chief = [step(90, 40), step(99, 80), step(101, 84), phase(104, Phase.REJOINING), *start(106), step(116, 64), step(117, 68)]
    workers = {"node1": chief, "node3": [phase(103, Phase.REJOINING)]}
    row = BEGUN.row(200.0, workers, "node1")
    assert (row.notice_s, row.next_step_s) == (3.0, 16.0)
    assert row.repeated == 84 - 64 + STEPS_PER_CALL
    assert (row.meet_s, row.start_s, row.build_s, row.restore_s, row.first_call_s) == (3.0, 5.0, 2.0, 1.0, 2.0)
    assert not row.measured


PAUSED = [step(50, 4), step(99, 8), step(101, 12), step(131, 16), step(132, 20), step(300, 24), phase(301, Phase.REJOINING)]


@pytest.mark.parametrize(
    ("chief", "until", "notice", "following", "meet"),
    [
        ([step(99, 80), phase(104, Phase.REJOINING), *start(106), phase(115, Phase.REJOINING), *start(120), step(130, 84)], 200, 4, 30, 16),
        ([step(99, 80), phase(104, Phase.REJOINING), phase(106, "starting")], 200, 4, None, 2),
        (PAUSED, 150, None, 30, None),
        ([step(40, 4), step(110, 8)], 150, None, 10, None),
    ],
)
def test_seconds_to_the_next_step(chief, until, notice, following, meet):
    """Of two starts that which brought a step; without a restart the longest pause, from the fault until the next one."""
    row = BEGUN.row(until, {"node1": chief}, "node1")
    assert (row.notice_s, row.next_step_s, row.meet_s, row.repeated) == (notice, following, meet, 0)


# --- table and picture


def rows():
    restart = BEGUN.row(200.0, {"node1": [step(99, 80), phase(104, Phase.REJOINING), *start(106), step(116, 84)]}, "node1")
    pause = Begun(Injection(1, 1, "slow-link", "node2", 160), 100.0, 160.0)
    waited = pause.row(200.0, {"node1": [step(99, 80), step(105, 84)]}, "node1")
    return [dataclasses.replace(restart, equal=True), dataclasses.replace(waited, equal=False)]


def test_the_table_counts_restarts_and_equal_weights(tmp_path):
    report = Report(rows())
    table = report.text().splitlines()
    assert table[0].split()[:3] == ["fault", "times", "restarts"]
    assert next(line for line in table if "worker-killed" in line).split() == ["worker-killed", "1", "1", "4.0", "16.0", "16.0", "0", "1"]
    assert next(line for line in table if "slow-link" in line).split() == ["slow-link", "1", "0", "-", "5.0", "5.0", "0", "0"]
    assert table[-1] == (
        "2 faults of 2 kinds; weights equal after 1; without a further step: 0; fault to next step: median 16.0 s, worst 16.0 s "
        "(goals: 30 and 90 s)"
    )
    report.draw(tmp_path / "chaos.png")
    assert (tmp_path / "chaos.png").stat().st_size > 5_000


def test_rows_survive_their_file(tmp_path):
    for row in rows():
        injection.STORE.put(tmp_path / "results.csv", row)
    assert injection.STORE.read(tmp_path / "results.csv") == rows()


# --- the plan


def test_an_unknown_fault_and_a_single_host_are_refused():
    with pytest.raises(LockstepError, match=r"^faults=meteor: it must be one of: worker-killed, chief-killed"):
        run_chaos.plan({"faults": "worker-killed,meteor"}, HOSTS)
    with pytest.raises(LockstepError, match="two workers at least"):
        run_chaos.plan({}, HOSTS[:1])


def test_a_benchmark_is_continued_with_its_digest_and_with_nothing_else_changed(results):
    made = run_chaos.plan({"chaos": "one"}, HOSTS)
    folder = results / "results" / "one"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({**made, "digest": "ab" * 32}))
    again = run_chaos.plan({"chaos": "one", "rounds": "5"}, HOSTS)
    assert (again["digest"], again["rounds"]) == ("ab" * 32, 5)
    with pytest.raises(LockstepError, match="seed"):
        run_chaos.plan({"chaos": "one", "seed": "2"}, HOSTS)


# --- on the nodes


class Asked:
    """A lab that answers with the same text, and keeps what it was asked."""

    def __init__(self, answer=""):
        self.answer, self.commands = answer, []

    def on(self, host, *command):
        self.commands.append((host, command))
        return self.answer


def scene(lab):
    return Scene(lab, "run", "/root", NAMES, lambda: None)


def test_nothing_is_killed_that_is_not_there():
    lab = Asked()
    with FAULTS["worker-killed"][0](scene(lab), "node2"):
        pass
    assert not any("kill" in word for _, command in lab.commands for word in command)


def test_a_fault_begins_when_its_command_does_not_when_that_has_ended(monkeypatch):
    """Or, where the command first does something else, with the kill at its end."""
    ended = []

    class Slow(Asked):
        def on(self, host, *command):
            time.sleep(0.01)
            ended.append(time.time())
            return super().on(host, *command)

    task = run_chaos.RunChaos.__new__(run_chaos.RunChaos)
    task.line, task._reaches = SimpleNamespace(print=lambda _: None), lambda *_: True
    monkeypatch.setitem(FAULTS, "cut", (faults.cut("input"), "other"))
    (cut,) = task._inject(scene(Slow()), [Injection(1, 0, "cut", "node2", 60)])
    assert cut.began < ended[0] - 0.01
    ended.clear()
    slow = scene(Slow(json.dumps({"pids": {"worker": 12}})))
    (corrupted,) = task._inject(slow, [Injection(1, 0, "state-corrupted", "node2", 60)])
    assert ended[1] <= corrupted.began < ended[-1]


def test_a_node_is_reached_again_whatever_happens():
    lab = Asked()
    with pytest.raises(ZeroDivisionError), faults.cut("input", "output")(scene(lab), "node2"):
        raise ZeroDivisionError
    (_, begun), (_, ended) = lab.commands
    assert begun[1].count("drop") == 2
    assert ended == ("nft", "delete", "table", "inet", "chaos")


@pytest.mark.skipif(shutil.which("nft") is None or os.geteuid() != 0, reason="needs nftables and root")
@pytest.mark.parametrize("chains", [("input",), ("input", "output")])
def test_what_drops_packets_is_understood(chains):
    lab = Asked()
    with faults.cut(*chains)(scene(lab), "node2"):
        pass
    (_, (_, rules)), _ = lab.commands
    assert subprocess.run(["nft", "--check", rules], capture_output=True, text=True, check=False).stderr == ""


def test_only_steps_after_the_last_fault_count():
    lines = "\n".join(
        json.dumps({**step(t, number), "epoch": 1, "images_per_s": 1.0, "input_wait": 0.0, "seconds": 1.0, "metrics": {}})
        for t, number in ((1.0, 60), (2.0, 80))
    )
    assert run_chaos._newest_step(scene(Asked(lines)), 1.5) == 80
    assert run_chaos._newest_step(scene(Asked(lines)), 2.5) == -1

    def off(*_):
        raise LockstepError("no such container")

    assert run_chaos._newest_step(scene(SimpleNamespace(on=off)), 0.0) == -1


def test_the_docs_describe_every_fault():
    text = (ROOT / "docs/concepts/recovery.md").read_text(encoding="utf-8")
    assert [name for name in FAULTS if f"`{name}`" not in text] == []
