"""The benchmark against peers: what is measured in which order, what the numbers say, what a host is told to run."""

import dataclasses
import itertools
import json
import math
import re
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from benchmarks.peer_results import peer_trials, peers_plot, peers_results
from benchmarks.peer_results.peer_trials import SYSTEMS, Cell, Settings, Wanted
from benchmarks.peer_results.peers_results import Results, Row
from benchmarks.plugins import peer_cell, peer_link
from benchmarks.plugins.peer_cell import MARK
from benchmarks.tasks import conclude_peers, peer_hosts, plan_peers
from control.campaign.store import Pace, measure
from control.common import configurations
from control.common.task import Task
from tests.unit.conftest import ROOT, load_file
from trainer.common.errors import ConfigError, LockstepError

common = sys.modules.setdefault("common", load_file(ROOT / "benchmarks" / "peers" / "common.py", "common"))


USUAL = Wanted.of({}, 1, False).systems


def refusal(function, *arguments):
    with pytest.raises(ConfigError) as caught:
        function(*arguments)
    return str(caught.value)


class TestWhatIsAskedFor:
    @pytest.mark.parametrize(
        ("options", "hosts", "lab", "asked"),
        [
            pytest.param({}, 5, True, Wanted((1, 2, 3, 4, 5), ("none", "1gbit", "100mbit"), USUAL, 3, 1), id="of the lab"),
            pytest.param({"workers": "1,3"}, 4, False, Wanted((1, 3), ("none",), USUAL, 3, 1), id="elsewhere links are as they are"),
            # Links in the given order, systems in that of the table.
            (
                {"links": "1Gbit, none,1gbit", "systems": "ddp, lockstep"},
                1,
                True,
                Wanted((1,), ("1gbit", "none"), ("lockstep", "ddp"), 3, 1),
            ),
        ],
    )
    def test_what_is_measured(self, options, hosts, lab, asked):
        assert Wanted.of(options, hosts, lab) == asked
        assert "lockstep" in USUAL
        assert "lockstep-half" not in USUAL

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"links": "fast"}, "link=fast: it must be none or a rate"),
            (
                {"links": "none,1gbit"},
                "links=none,1gbit: only the lab's links can be limited (ansible-playbook lab.yml makes one); on other ",
            ),
            ({"workers": "1-6"}, "workers=1-6: the inventory has 5 hosts; add hosts or ask for fewer"),
            ({"systems": "dpd"}, "systems=dpd: dpd is unknown (did you mean ddp?); there are: lockstep, "),
        ],
    )
    def test_what_can_not_be_measured_is_refused(self, options, message):
        assert refusal(Wanted.of, options, 5, False).startswith(message)

    @pytest.mark.parametrize(("name", "number"), [("steps", 20), ("warm_up", 8), ("steps", 4)])
    def test_steps_are_whole_groups(self, name, number):
        assert Settings.of({"steps": "80", "threads": "2", "rounds": "x"}) == Settings(steps=80, threads=2)
        assert peer_trials.CHUNK == common.CHUNK
        assert refusal(Settings.of, {name: number}).startswith(f"{name}={number}: every system takes 8 steps at a time")


def block_of(cell):
    return cell.round, cell.link, cell.workers


class TestCells:
    asked = Wanted((1, 2), ("none", "1gbit"), ("lockstep", "lockstep-half", "ideal", "stock", "keras-fit", "ddp-fp16"), 2, 1)

    @pytest.mark.parametrize(
        ("workers", "systems", "expected"),
        [
            ((1,), ("in-step", "ideal"), "systems=in-step,ideal: measured with several workers only, and workers is 1; add -e workers=2"),
            ((2, 5), ("keras-fit",), "systems=keras-fit: measured with one worker only, and workers is 2,5; add -e workers=1, or other"),
        ],
    )
    def test_a_system_without_its_workers_is_refused(self, workers, systems, expected):
        with pytest.raises(ConfigError, match=f"^{re.escape(expected)}"):
            Wanted(workers, ("none",), systems, 3, 1).cells()

    @pytest.mark.parametrize(
        ("block", "systems"),
        [
            pytest.param((1, "1gbit", 2), {"lockstep", "lockstep-half", "ideal", "stock", "ddp-fp16"}, id="all but what is for one worker"),
            pytest.param((2, "none", 1), {"keras-fit", "lockstep", "stock"}, id="one of ours stands for all at one worker"),
            pytest.param((2, "1gbit", 1), set(), id="one worker at one link"),
        ],
    )
    def test_each_block_has_what_can_differ(self, block, systems):
        assert {cell.system for cell in self.asked.cells() if block_of(cell) == block} == systems

    def test_a_round_has_whole_blocks_in_drawn_orders(self):
        """Links change seldom; the order within a block follows from the seed."""
        many = dataclasses.replace(self.asked, rounds=8)
        blocks = [(block, [cell.system for cell in cells]) for block, cells in itertools.groupby(many.cells(), block_of)]
        assert [block for block, _ in blocks[:6]] == [
            *((1, "none", 1), (1, "none", 2), (1, "1gbit", 2)),
            *((2, "none", 1), (2, "none", 2), (2, "1gbit", 2)),
        ]
        assert len(blocks) == 24
        assert len({tuple(order) for block, order in blocks if block[1:] == ("none", 2)}) > 1
        assert many.cells() == many.cells() != dataclasses.replace(many, seed=2).cells()


class TestPace:
    def test_the_most_alike_cells_count(self):
        pace = Pace(lambda cell: (cell.link, cell.system), lambda cell: cell.link)
        assert pace.left([Cell(1, "none", 2, "ddp")]) is None
        for link, system, seconds in (("none", "ddp", 10), ("none", "stock", 20), ("100mbit", "ddp", 90)):
            pace.add(Cell(1, link, 2, system), seconds)
        assert pace.left([Cell(2, "none", 3, "ddp")]) == 10
        assert pace.left([Cell(2, "none", 3, "horovod")]) == 15
        assert pace.left([Cell(2, "1gbit", 3, "ddp"), Cell(2, "100mbit", 3, "stock")]) == 20 + 90

    def test_trials_are_measured_in_turn_and_shown(self):
        lines = []
        line = SimpleNamespace(update=lines.append, print=lines.append)

        def one(trial, show):
            show()
            return f"result of {trial}"

        measure(["a", "b"], line, Pace(), str.upper, one)
        assert lines == ["1 of 2: A, 0:00", "  1/2  result of a", "2 of 2: B, 0:00; about 0:00 left", "  2/2  result of b"]


class TestStart:
    def job(self, folder, *argv, deadline=20):
        return {"environment": {"A": "x y"}, "argv": list(argv), "folder": str(folder), "deadline": deadline}

    def run(self, folder, job):
        folder.mkdir(exist_ok=True)
        (folder / "run.sh").write_text(peer_cell.start_script(**job))
        subprocess.run(["bash", "run.sh"], cwd=folder, check=True)
        return (folder / "exit").read_text().strip(), (folder / "worker.log").read_text()

    def test_the_script_passes_environment_and_exit_code_on(self, tmp_path):
        folder = tmp_path / "a folder"
        folder.mkdir()
        (folder / "result.json").write_text("of another cell")
        assert self.run(folder, self.job(folder, "sh", "-c", 'echo "$A"; exit 3')) == ("3", "x y\n")
        assert not (folder / "result.json").exists()

    def test_what_takes_too_long_is_ended(self, tmp_path):
        assert self.run(tmp_path / "b", self.job(tmp_path / "b", "sleep", "30", deadline=1))[0] == "124"

    def test_a_program_s_command_line_is_what_it_reads(self, tmp_path, monkeypatch):
        cell = Cell(1, "none", 2, "ddp-fp16")
        argv = cell.arguments(1, ["10.0.0.1:5", "10.0.0.2:6"], Settings(steps=24, batch=32), 3)
        monkeypatch.setattr(sys, "argv", ["x", *argv, "--result", str(tmp_path / "r.json")])
        given = common.Task.parse()
        assert (given.rank, given.workers, given.steps, given.batch, given.threads, given.variant) == (1, 2, 24, 32, 3, "fp16")
        assert (given.address, given.first) == ("10.0.0.2", ("10.0.0.1", 5))

    def test_a_link_is_set_once_and_quoted_whole(self):
        assert peer_link.script("1gbit") == (
            'sh -c \'[ "$(cat /run/lockstep-lab.link 2>/dev/null || echo none)" = 1gbit ] || { tc qdisc replace dev eth0 root tbf rate '
            "1gbit burst 256kb latency 100ms && echo 1gbit > /run/lockstep-lab.link && echo changed; }'"
        )
        assert "tc qdisc del dev eth0 root && echo none" in peer_link.script("none")


class TestEndOfAWorker:
    @pytest.mark.parametrize(
        ("message", "end"),
        [
            (f'{MARK}\n0\n{MARK}\n{{"rank": 1}}\n{MARK}\none\ntwo\n', (0, {"rank": 1}, ["one", "two"])),
            (f"{MARK}\n{MARK}\n\n{MARK}\n", (None, None, [])),
            ("cd: no such folder", (None, None, ["cd: no such folder"])),
        ],
    )
    def test_code_result_and_log(self, message, end):
        assert peer_cell._parse(message) == dict(zip(("exit", "result", "lines"), end, strict=True))

    @pytest.mark.parametrize(
        ("ends", "message"),
        [
            ([(75, ["gone"]), (1, ["Traceback", "ValueError: bad", "shutting down"]), (None, [])], "1: exit code 1: ValueError: bad"),
            ([(1, ["terminate called after 'gloo::IoException'", "  what():  refused", "Aborted"])], "0: exit code 1: what():  refused"),
            ([(124, [])], "0: took too long: no output"),
            ([(None, ["x"])], "0: ended without an exit code: x"),
            ([(137, [])], "0: exit code 137 (killed by SIGKILL): no output"),
        ],
    )
    def test_the_first_failure_is_the_cause(self, ends, message):
        """Not that of a worker that lost another one."""
        every = [{"host": str(rank), "exit": code, "lines": lines} for rank, (code, lines) in enumerate(ends)]
        assert peers_results.first_failure(every) == message


def result(rank=0, seconds=0.1, **other):
    measured = {"rank": rank, "batch": 64, "steps": 40, "seconds_step": seconds, "cpu_seconds_step": 0.03, "sent_bytes_step": 1e6 + rank}
    measured |= {"started_at": 1000.0 + rank, "losses": [2.3, 2.1], "parameters": peers_results.PARAMETERS, "versions": {"torch": "2.13"}}
    return {**measured, "weights_sha256": "aa", "weights_before": "00", **other}


class TestRows:
    cell = Cell(1, "none", 2, "ddp")

    @pytest.mark.parametrize(
        ("other", "reason"),
        [
            ({"parameters": 10}, "it trains 10 parameters, not the model's 3,688,714"),
            ({"losses": [2.3, math.nan]}, "its loss is no number"),
            ({"weights_before": "aa"}, "its steps changed no weight"),
        ],
    )
    def test_what_is_no_measurement(self, other, reason):
        row = Row.of_results(self.cell, [result(), result(1, **other)])
        assert (row.measured, row.reason) == (False, reason)

    def test_images_a_second_are_the_sum_over_workers(self):
        row = Row.of_results(self.cell, [result(0, 0.1), result(1, 0.2)])
        assert row.measured
        assert row.images_per_s == pytest.approx(640 + 320)
        assert row.seconds_step == pytest.approx(128 / 960)
        assert (row.slowest_seconds_step, row.sent_bytes_step, row.started_at, row.weights_equal) == (0.2, 1e6 + 1, 1000.0, True)

    def test_what_this_project_chose_is_kept_where_it_chose(self):
        actual = [result(settings={"reduction": {"name": "powersgd"}})] * 2
        systems = ("lockstep", "lockstep-powersgd-2", "lockstep-balanced", "ddp", "ideal")
        rows = [Row.of_results(Cell(1, "none", 2, system), actual) for system in systems]
        assert [row.chosen for row in rows] == ["powersgd", "", "powersgd", "", ""]
        names = [Results([row]).at("none", 2)[0].name for row in [*rows[:2], dataclasses.replace(rows[0], chosen="")]]
        assert names == ["lockstep (powersgd)", "lockstep-powersgd-2", "lockstep"]

    def test_rows_come_back_from_the_file_and_a_second_try_replaces_the_first(self, tmp_path):
        path = tmp_path / "results.csv"
        assert peers_results.STORE.read(path) == []
        peers_results.STORE.put(path, Row.failed(self.cell, 'it said "no", and ended'))
        other = Row.failed(Cell(2, "none", 2, "ddp"), "x")
        peers_results.STORE.put(path, other)
        assert peers_results.STORE.read(path)[0].reason == 'it said "no", and ended'
        measured = Row.of_results(self.cell, [result(), result(1, weights_sha256="bb")])
        assert measured.weights_equal is False
        peers_results.STORE.put(path, measured)
        assert peers_results.STORE.read(path) == [other, measured]


def row(system, images_per_s, number=1, link="none", workers=5, sent=14.75e6):
    seconds = 64 * workers / images_per_s
    speed = {"seconds_step": seconds, "images_per_s": images_per_s, "slowest_seconds_step": seconds, "cpu_seconds_step": 0.03}
    more = {"sent_bytes_step": sent, "steps": 40, "loss": 2.0, "weights_equal": True, "started_at": 1000.0}
    return Row(number, link, workers, system, "measured", **speed, **more)


@pytest.fixture
def results():
    """Three rounds at 1 Gbit/s; a peer that fails, and one that does in one round."""
    rows = []
    for number, (ours, ddp, ideal) in enumerate([(2000, 1000, 2500), (2400, 1000, 4000), (1800, 1200, 2000)], 1):
        rows += [row("lockstep", ours, number, "1gbit", sent=0.25e6), row("ddp", ddp, number, "1gbit")]
        rows += [row("ideal", ideal, number, "1gbit", sent=0)]
    rows += [row("stock", 900, 1, "1gbit"), Row.failed(Cell(2, "1gbit", 5, "stock"), "node1: exit code 1: boom")]
    rows += [Row.failed(Cell(number, "1gbit", 5, "horovod"), "not installed: no compiler") for number in (1, 2)]
    rows += [row(system, speed, 1, "1gbit", 1, sent=0) for system, speed in (("lockstep", 800), ("keras-fit", 700), ("ddp", 600))]
    return Results(rows)


class TestResults:
    def test_what_the_wire_takes(self, results):
        ddp = results.points["1gbit", 5, "ddp"]
        assert (ddp.wire, peers_plot._wire_limit(ddp)) == pytest.approx((0.118, 320 / 0.118))
        actual = Results([row("ddp", 1000, link=link) for link in ("100mbit", "none", "1gbit")])
        assert (actual.links, actual.points["none", 5, "ddp"].wire) == (["none", "1gbit", "100mbit"], None)

    def test_sentences_for_the_most_workers_and_for_one(self, results):
        assert results.sentences() == [
            "1 worker: lockstep trains 800 images/s, 1.14 times the best peer of its round (keras-fit; 700).",
            "5 workers, 1 Gbit/s: lockstep trains 2,000 images/s, 2.00 times the best peer of its round (ddp; 1,000; rounds "
            "1.50 to 2.40), "
            "80% of the ideal (2,500; rounds 60% to 90%).",
        ]

    def test_a_sentence_is_of_this_project_as_it_comes_where_that_was_measured(self):
        faster, plain = row("lockstep-half", 2000), row("lockstep", 1500)
        assert Results([faster, plain]).sentences() == ["5 workers, links unlimited: lockstep trains 1,500 images/s."]
        assert Results([faster]).sentences() == ["5 workers, links unlimited: lockstep-half trains 2,000 images/s."]

    def test_the_best_peer_is_that_of_each_round(self):
        peers_of = {"lockstep": (2000, 2000, 2000), "ddp": (1000, 800, 1000), "horovod": (900, 1250, 800)}
        rows = [row(system, speed, number) for system, speeds in peers_of.items() for number, speed in enumerate(speeds, 1)]
        (message,) = Results(rows).sentences()
        assert message == (
            "5 workers, links unlimited: lockstep trains 2,000 images/s, 2.00 times the best peer of its round "
            "(ddp, horovod; 1,000; rounds 1.60 to 2.00)."
        )

    def test_the_table_shows_who_failed(self, results):
        assert results.table("1gbit", 5) == (
            "5 workers, 1 Gbit/s\n"
            "  system    ms per step   from     to  images/s  of ideal  of best peer  MB sent  wire ms  CPU ms  rounds\n"
            "  ideal           128.0   80.0  160.0     2,500      100%          2.50     0.00      0.0    30.0       3\n"
            "  lockstep        160.0  133.3  177.8     2,000       80%          2.00     0.25      2.0    30.0       3\n"
            "  ddp             320.0  266.7  320.0     1,000       40%          1.00    14.75    118.0    30.0       3\n"
            "  stock           355.6  355.6  355.6       900       36%          0.90    14.75    118.0    30.0       1\n"
            "  horovod        failed      -      -         -         -             -        -        -       -       0"
        )

    def test_unequal_weights_are_told_but_not_of_those_that_reduce_nothing(self):
        rows = [dataclasses.replace(row(name, 1000), weights_equal=False) for name in ("ideal", "in-step", "ddp")]
        assert Results(rows).unequal() == ["ddp"]

    def test_the_summary_has_every_point(self, results):
        actual = {(one["workers"], one["system"]): one for one in results.summary()}
        assert len(actual) == 7
        assert actual[5, "lockstep"]["of_best_peer"] == pytest.approx({"least": 1.5, "median": 2.0, "most": 2.4})

    def test_the_page_names_command_hosts_versions_and_failures(self, results):
        record = {
            "command": "ansible-playbook benchmarks/peers.yml",
            "date": "2026-11-21T12:00:00+00:00",
            "settings": dataclasses.asdict(Settings()),
            "rounds": 3,
            "machines": [{"name": "node1", "model": "Some CPU", "cpus": 0.38, "memory_mb": 3072}],
            "versions": {"ddp": {"torch": "2.13"}},
        }
        page = results.markdown(record)
        expected = (
            "`ansible-playbook benchmarks/peers.yml`",
            "- node1: Some CPU, 0.38 CPUs, 3,072 MB",
            "## 5 workers, 1 Gbit/s",
            "| lockstep | 160.0 | 133.3 | 177.8 | 2,000 | 80% | 2.00 | 0.25 | 2.0 | 30.0 | 3 |",
            "- stock: node1: exit code 1: boom (5 workers, 1 Gbit/s)\n",
            "- horovod: not installed: no compiler (5 workers, 1 Gbit/s)\n",
            "- ddp: PyTorch DDP on Gloo (one worker: plain PyTorch) (torch 2.13)",
        )
        assert [part for part in expected if part not in page] == []

    @pytest.mark.parametrize("failing", [[], ["lockstep", "ddp"]])
    def test_it_is_drawn_also_of_little(self, failing, tmp_path):
        """The largest number of workers that has numbers counts."""
        some = Results([row("ddp", 1000, workers=1), *(Row.failed(Cell(1, "none", 5, system), "no route") for system in failing)])
        peers_plot.draw(some, tmp_path / "one.png")
        assert some.most == 1
        assert (tmp_path / "one.png").read_bytes()[:4] == b"\x89PNG"

    def test_curves_begin_with_what_one_worker_does(self, results, tmp_path):
        peers_plot.draw(results, tmp_path / "all.png")
        assert peers_plot._curve(results, "1gbit", "lockstep") == [(1, 800, 800, 800), (5, 2000, 1800, 2400)]
        assert peers_plot._curve(results, "1gbit", "ideal")[0] == (1, 800, 800, 800)
        assert peers_plot._curve(results, "1gbit", "ddp")[0] == (1, 600, 600, 600)
        assert peers_plot._curve(results, "1gbit", "stock") == [(5, 900, 900, 900)]


class TestActions:
    def test_results_are_added_to_on_the_same_machines_only(self):
        one, two = ({"name": name, "cpus": 0.38, "packages": {"tensorflow": "2.21.0"}} for name in ("node1", "node2"))
        assert peer_hosts._continued("g", [one, two], [one]) == [one, two]
        assert peer_hosts._continued("g", [one], [one, two]) == [one, two]
        with pytest.raises(LockstepError) as caught:
            peer_hosts._continued("g", [one, two], [one, {**two, "cpus": 0.19}])
        assert str(caught.value) == (
            "peers=g: node2 was measured with another cpus, and the two can't be compared; measure under another name: -e peers=g-2"
        )

    @pytest.mark.parametrize(("given", "threads"), [(0, 2), (3, 3)])
    def test_hosts_of_one_machine_share_its_threads(self, given, threads):
        hosts = [{"name": name, "rank": rank, "address": "127.0.0.1", "port": 1 + rank} for rank, name in enumerate(("node1", "node2"))]
        facts = {"model": "m", "cores": 4, "cpus": 4.0, "memory": {"total_mb": 1}, "os": "o", "python": {}}
        names = [host["name"] for host in hosts]
        found = {"looked": {name: {} for name in names}, "probed": {name: {"facts": facts} for name in names}}
        task = Task({**found, "hosts": hosts, "threads": given}, check_mode=True)
        judged = peer_hosts.judge(task)["ansible_facts"]["peers_hosts"]
        assert [judged[name]["threads"] for name in names] == [threads, threads]

    def test_a_host_that_trains_is_refused(self):
        peer_hosts._refuse_busy("node1", ["peers=-w0-aaaaaa"])
        with pytest.raises(LockstepError, match="peers-w0-aaaaaa runs there"):
            peer_hosts._refuse_busy("node1", ["peers-w0-aaaaaa"])
        with pytest.raises(LockstepError) as caught:
            peer_hosts._refuse_busy("node1", ["my-run-w0"])
        assert str(caught.value) == (
            "node1: my-run-w0 runs there, and would be measured with the benchmark; "
            "wait for it, or stop it (ansible-playbook status.yml, stop.yml)"
        )

    @pytest.mark.parametrize(
        "system", [system for system in SYSTEMS.values() if system.kind == peer_trials.OURS and system.program == "lockstep"]
    )
    def test_this_project_s_variants_are_sections_of_its_configuration(self, system):
        assert configurations.build(json.loads(system.variant))

    def continued(self, tmp_path, **changed):
        known = {"name": "a", "date": "then", "command": "first", "settings": {"steps": 40}, "code": "peers-1.zip", "seed": 1, "rounds": 3}
        known |= {"hosts": [{"name": "node1"}, {"name": "node2"}], "workers": [2], "links": ["none"], "systems": ["ddp"]}
        (tmp_path / "summary.json").write_text(json.dumps(known))
        peers_results.STORE.put(tmp_path / "results.csv", Row.failed(Cell(1, "none", 2, "ddp"), "x"))
        return plan_peers._check_same(tmp_path, {**known, "date": "now", "command": "second", **changed})

    def test_a_folder_is_continued_with_more(self, tmp_path):
        more = {"workers": [1], "links": ["1gbit"], "systems": ["stock"], "rounds": 1, "hosts": [{"name": "node1"}]}
        assert self.continued(tmp_path, **more) == {
            "date": "then",
            "command": "first",
            "workers": [1, 2],
            "links": ["none", "1gbit"],
            "systems": ["ddp", "stock"],
            "rounds": 3,
            "hosts": [{"name": "node1"}, {"name": "node2"}],
        }
        assert plan_peers._measured(tmp_path)["command"] == "first", "what was found out stays"

    def test_a_folder_of_other_code_or_hosts_is_not(self, tmp_path):
        assert refusal(lambda: self.continued(tmp_path, code="peers-2.zip", hosts=[{"name": "pi1"}])) == (
            "peers=a: it was measured with another trainer or peer programs (their code has changed), list of hosts, "
            "and the two can't be compared; measure under another name: -e peers=a-2"
        )

    def test_versions_are_those_that_the_programs_told(self, tmp_path):
        assert conclude_peers._versions(conclude_peers._measured(tmp_path)) == {}
        lines = [
            {"cell": Cell(1, "100mbit", 5, "ddp-fp16").key, "workers": [{"result": {"versions": {"torch": "2.13"}}}]},
            {"cell": Cell(1, "100mbit", 5, "stock").key, "workers": [{"result": None}]},
        ]
        (tmp_path / "measurements.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert conclude_peers._versions(conclude_peers._measured(tmp_path)) == {"ddp-fp16": {"torch": "2.13"}}


def given(rank, port, workers=3, **other):
    addresses = [f"127.0.0.1:{port - common.MEETING_PORTS + number}" for number in range(workers)]
    values = {"steps": 40, "warm_up": 16, "seconds": 20.0, "batch": 64, "threads": 1, "variant": "", "result": None, **other}
    return common.Task(rank=rank, addresses=addresses, **values)


class TestPrograms:
    @pytest.mark.parametrize(("pace", "chunks"), [(0.01, 5), (0.4, 5), (0.6, 4), (2.4, 1), (9.0, 1)])
    def test_steps_become_fewer_when_they_are_slow(self, pace, chunks):
        assert given(0, 20000).chunks(pace) == chunks

    def test_the_same_seed_gives_the_same_images_to_all_systems(self):
        images, labels = common.images(3, 4)
        assert (images.shape, images.dtype.name, labels.shape, labels.dtype.name) == ((8, 4, 32, 32, 3), "uint8", (8, 4), "int32")
        assert int(images.sum()) == int(common.images(3, 4)[0].sum())
        assert int(images.sum()) != int(common.images(2, 4)[0].sum())

    def test_the_loopback_s_interface_and_one_that_is_not_there(self):
        task = given(0, 20000)
        first = task.sent_bytes()
        assert task.sent_bytes() >= first >= 0
        elsewhere = dataclasses.replace(task, addresses=["192.0.2.1:1"])
        with pytest.raises(OSError, match=r"no network interface of this host has the address 192\.0\.2\.1; set worker_address"):
            _ = elsewhere.interface

    def test_workers_share_words_in_order_of_rank(self, port):
        actual = {}

        def worker(rank):
            meeting = common.Meeting(given(rank, port))
            actual[rank] = [meeting.share(rank * 10), meeting.share(None)]
            meeting.end()

        threads = [threading.Thread(target=worker, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert actual == {rank: [[0, 10, 20], [None] * 3] for rank in range(3)}

    def test_the_clock_leaves_the_warm_up_out_and_stops_in_time(self, tmp_path):
        class Alone:
            def share(self, value):
                return [value]

            def end(self):
                pass

        runs = []
        task = given(0, 20000, workers=1, result=tmp_path / "r.json", steps=24)
        weights = lambda: [common.np.full(3, len(runs))]  # noqa: E731 - as short as that
        trained = common.Trained(lambda steps: runs.append(steps) or 2.5 / len(runs), weights, {"x": "1"})
        common.measure(task, Alone(), trained)
        written = json.loads((tmp_path / "r.json").read_text())
        assert runs == [8] * 5
        assert (written["steps"], len(written["seconds_chunks"]), written["losses"]) == (24, 3, [2.5, 0.5])
        assert (written["parameters"], written["versions"]["x"]) == (3, "1")
        assert written["weights_before"] == common.digest([common.np.full(3, 0)])["weights_sha256"] != written["weights_sha256"]

    def test_who_loses_another_worker_ends_at_once(self, port):
        program = (
            "import sys, time; sys.path.insert(0, sys.argv[1]); import common; from pathlib import Path; "
            "rank = int(sys.argv[2]); addresses = [f'127.0.0.1:{int(sys.argv[3]) + n}' for n in range(2)]; "
            "meeting = common.Meeting(common.Task(rank, addresses, 8, 8, 1.0, 1, 1, '', Path('x'))); "
            "sys.exit(3) if rank else time.sleep(60)"
        )
        argv = [sys.executable, "-c", program, str(ROOT / "benchmarks" / "peers")]
        first = str(port - common.MEETING_PORTS)
        workers = [subprocess.Popen([*argv, rank, first], stdout=subprocess.PIPE, text=True) for rank in ("0", "1")]
        try:
            assert [worker.wait(60) for worker in workers] == [75, 3]
            assert workers[0].stdout.read() == "another worker of this cell is gone\n"
        finally:
            for worker in workers:
                worker.kill()
