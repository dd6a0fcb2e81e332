"""A sweep's results from made trials: which files are written, what is counted, what is pooled and what is not."""

import dataclasses
import json
from pathlib import Path

import pytest

from control.campaign import timings
from control.campaign.timings import STRONG, WEAK
from control.runs.results import run_plots
from control.sweep.scaling import advice_text, scaling_plots, sweep_results
from control.sweep.scaling.fitting import Work
from tests.unit.timing_samples import BYTES, lost, step, strong_step, timing, trials
from trainer.common.errors import ConfigError

RECORD = {"name": "pi", "batch_size": 64, "global_batch": 320, "gradient_bytes": BYTES, "train_images": 6400}
WEAK_WORK, STRONG_WORK = Work(WEAK, 64, BYTES, 6400), Work(STRONG, 320, BYTES, 6400)
PARTS = {"input": 0.001, "forward_backward": 0.07, "compression": 0.003, "all_reduce": 0.05, "apply": 0.009}
PICTURES = ("time_median.png", "time_mean.png", "speedup.png", "efficiency.png", "images_per_s.png")


@pytest.fixture
def drawn(monkeypatch):
    """Names of drawn pictures; drawing is slow, and tested elsewhere."""
    actual = []

    def put(path):
        actual.append(path.name)
        path.write_bytes(b"a picture")

    for module, name in ((scaling_plots, "times"), (scaling_plots, "checkpoints"), (scaling_plots, "rates"), (run_plots, "split")):
        monkeypatch.setattr(module, name, lambda *given: put(next(one for one in given if isinstance(one, Path))))
    return actual


def made(tmp_path, rows, record=RECORD):
    """A sweep's folder with these trials measured."""
    folder = tmp_path / "pi"
    folder.mkdir()
    for row in rows:
        timings.put(folder / "timings.csv", row)
    (folder / "summary.json").write_text(json.dumps(record))
    return folder


def taken_apart(folder, row, hosts=None, images=64, **phases):
    """Steps of a trial profiled, on these hosts or all."""
    record = {"t": 1.0, "kind": "split", "epoch": 1, "step": 50, "step_seconds": 1.0, "images": images, **PARTS, **phases}
    for host in hosts or row.hosts.split():
        path = folder / "trials" / row.trial.run_name("pi") / "workers" / host / "metrics.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as stream:
            stream.write(json.dumps(record) + "\n")


def weak(counts=(1, 2, 3), repeats=2):
    return trials(step(0.08, 0.002, 8e-9), counts=counts, repeats=repeats, work=WEAK_WORK)


def strong(counts=(1, 2, 3)):
    return trials(strong_step(0.4, a=0.021), counts=counts, repeats=2, work=STRONG_WORK)


def analysis(folder):
    return json.loads((folder / "summary.json").read_text())["analysis"]


def test_all_files_are_written_once(tmp_path):
    """All files are written and the second time nothing changes. The only test that draws."""
    folder = made(tmp_path, weak(counts=(1, 2)))
    first = sweep_results.conclude(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(["analysis.md", "summary.json", "timings.csv", *PICTURES])
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in PICTURES)
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.png")}
    second = sweep_results.conclude(folder)
    assert (first.changed, second.changed) == (True, False)
    assert {path.name: path.stat().st_mtime_ns for path in folder.glob("*.png")} == before
    assert (second.found.timings, second.found.studies, second.answer) == (first.found.timings, first.found.studies, first.answer)


@pytest.mark.parametrize(("failed", "words"), [(0, ""), (2, " (2 trials failed; their output is in pi/logs)")])
def test_nothing_is_measured_yet(tmp_path, failed, words):
    folder = made(tmp_path, [lost(timing(1, repeat, 1.0)) for repeat in range(failed)])
    with pytest.raises(ConfigError) as caught:
        sweep_results.conclude(folder)
    assert str(caught.value) == f"sweep=pi: nothing is measured yet{words}; measure: ansible-playbook sweep.yml -e sweep=pi"
    assert not (folder / "analysis.md").exists()


def test_failed_trials_are_counted_and_records_stay(tmp_path, drawn):
    folder = made(tmp_path, [*weak(), lost(timing(4, 1, 1.0)), lost(timing(4, 2, 1.0))])
    results = sweep_results.conclude(folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["trials_measured"], summary["trials_failed"], len(results.found.timings)) == (6, 2, 8)
    assert {name: summary[name] for name in RECORD} == RECORD
    assert [row["workers"] for row in summary["analysis"]["failed"]] == [4, 4]


def test_one_scaling_of_which_every_trial_failed(tmp_path, drawn):
    folder = made(tmp_path, [*weak(), *map(lost, strong())])
    results = sweep_results.conclude(folder)
    assert sorted(drawn) == sorted(PICTURES)
    assert "**Use 1 worker**" in results.answer
    assert results.answer.count("**No answer**: no trial succeeded; ") == 1
    assert "`ansible-playbook sweep.yml -e sweep=pi -e repeats=3 -e epochs=3 -e scaling=strong`" in results.answer


def test_pictures_of_the_second_scaling_have_its_name(tmp_path, drawn):
    sweep_results.conclude(made(tmp_path, [*weak(), *strong()]))
    assert sorted(drawn) == sorted([*PICTURES, "speedup_strong.png", "efficiency_strong.png", "images_per_s_strong.png"])


def test_pictures_of_one_scaling_have_plain_names(tmp_path, drawn):
    folder = made(tmp_path, [*map(lost, weak()), *strong()])
    taken_apart(folder, strong()[-1])
    sweep_results.conclude(folder)
    assert sorted(drawn) == sorted([*PICTURES, "split.png"])


def test_energy_is_measured_where_the_meter_was(tmp_path, drawn):
    rows = weak()
    folder = made(tmp_path, rows)
    path = folder / "trials" / rows[-1].trial.run_name("pi") / "energy.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"joules": 600.0}))
    sweep_results.conclude(folder, watts_per_node=5.0)
    assert "| 3 | 1 | 200 ± - | measured by the meter |" in (folder / "analysis.md").read_text()
    sources = [row["source"] for row in analysis(folder)["studies"][0]["energy"]]
    assert sources == ["estimate from watts_per_node", "estimate from watts_per_node", "measured by the meter"]


def test_bandwidth_is_passed_on(tmp_path, drawn):
    folder = made(tmp_path, weak(), {**RECORD, "mbit_s": 941.0})
    results = sweep_results.conclude(folder)
    assert "at the measured 941 Mbit/s" in results.answer
    assert "| 941 Mbit/s (measured) |" in (folder / "analysis.md").read_text()
    assert [row["mbit_s"] for row in analysis(folder)["studies"][0]["wire"]] == [100.0, 1000.0, 941.0]


def test_phases_are_of_one_group_only(tmp_path, drawn):
    """Steps of another scaling, or with states saved, are others."""
    often = [dataclasses.replace(row, checkpoint_every=50) for row in weak(counts=(3,))]
    rows = [*weak(), *strong(), *often]
    folder = made(tmp_path, rows)
    for row in rows:
        own = 0.4 / row.workers if row.scaling == STRONG else 0.9 if row.checkpoint_every else 0.08
        images = 64 if row.scaling == WEAK else 320 // row.workers
        taken_apart(folder, row, images=images, forward_backward=own - PARTS["input"] - PARTS["compression"] - PARTS["apply"])
    results = sweep_results.conclude(folder)
    actual = analysis(folder)["split_ms"]
    assert list(actual) == ["1", "2", "3"]
    assert [phases["forward_backward"] for hosts in actual.values() for phases in hosts.values()] == pytest.approx([67] * 6)
    assert [one.fit.own for one in results.found.studies] == [
        pytest.approx({1: 0.08, 2: 0.08, 3: 0.08}),
        pytest.approx({1: 0.4, 2: 0.2, 3: 0.4 / 3}),
    ]


def test_own_work_needs_samples_of_all_hosts(tmp_path, drawn):
    rows = weak()
    folder = made(tmp_path, rows)
    for row in rows:
        taken_apart(folder, row, hosts=None if row.workers < 3 else ["node1", "node2"])
    made_fit = sweep_results.conclude(folder).found.studies[0].fit
    assert made_fit.own == pytest.approx({1: 0.083, 2: 0.083})


def times(alone, sending, method="powersgd"):
    return {"step_seconds": alone, "methods": {method: {"step_seconds": sending}}}


TIMED = {
    "hosts": ["node1 10.0.0.1", "node2 10.0.0.2", "node3 10.0.0.3"],
    "reduction": "powersgd",
    "timed": {"node1": times(0.08, 0.1), "node2": times(0.07, 0.104), "node3": times(0.08, 0.2)},
}


def test_own_work_is_of_the_timed_hosts():
    """Own work is that of the hosts that were timed. Of equal hosts the usual one, of others the slowest; one worker compresses nothing."""
    assert sweep_results._timed_work(TIMED, WEAK_WORK, 3) == pytest.approx({1: 0.08, 2: 0.102, 3: 0.2})
    assert sweep_results._timed_work(TIMED, WEAK_WORK, 2) == pytest.approx({1: 0.08, 2: 0.102})


def test_host_timed_before_and_after_has_the_mean():
    later = {"node1": times(0.1, 0.12), "node2": times(0.09, 0.124), "node3": times(0.1, 0.22)}
    again = {name: [one, later[name]] for name, one in TIMED["timed"].items()}
    assert sweep_results._timed_work(TIMED | {"timed": again}, WEAK_WORK, 3) == pytest.approx({1: 0.09, 2: 0.112, 3: 0.21})


@pytest.mark.parametrize(
    ("change", "work"),
    [({}, STRONG_WORK), ({"timed": {}}, WEAK_WORK), ({"reduction": "half"}, WEAK_WORK), ({"timed": {"node1": times(1, 1)}}, WEAK_WORK)],
)
def test_own_work_that_was_not_timed(change, work):
    assert sweep_results._timed_work(TIMED | change, work, 3) == {}


def test_all_reduce_in_use_is_part_of_work():
    chosen = {"reduction": "powersgd", "sent_bytes": 127_528, "transport": "direct", "sums": [43_008, 84_536]}
    work = sweep_results._works(RECORD | chosen)[0]
    assert (work.gradient_bytes, work.transport, work.sums, work.compressed) == (127_528, "direct", (43_008, 84_536), True)
    # 43 kB go whole to each of two workers at most; the rest in two hops.
    assert (work.sent(2).messages, work.sent(2).bytes) == (1 + 2, 43_008 + 84_536)
    assert sweep_results._works(RECORD)[0].compressed is False


def test_images_of_a_step_follow_the_dataset():
    assert sweep_results._works(RECORD) == [WEAK_WORK, STRONG_WORK]
    older = {name: value for name, value in RECORD.items() if name != "train_images"}
    assert [work.train_images for work in sweep_results._works(older)] == [0, 0]


def test_commands_are_as_a_person_types_them(tmp_path, drawn):
    folder = made(tmp_path, weak(counts=(1, 2)))
    results = sweep_results.conclude(folder, typed=lambda text: text.replace(".yml", ".yml -i hosts.yml"))
    message = "Measure: `ansible-playbook sweep.yml -i hosts.yml -e sweep=pi -e workers=1-3 -e repeats=3 -e epochs=3`"
    assert message in results.answer
    text = (folder / "analysis.md").read_text()
    assert message in text
    assert text.count("ansible-playbook") == text.count(".yml -i hosts.yml")


def test_saved_states_follow_the_answer(tmp_path, drawn):
    often = [dataclasses.replace(row, checkpoint_every=50) for row in weak(counts=(3,))]
    results = sweep_results.conclude(made(tmp_path, [*weak(), *often]))
    assert results.answer.startswith("**Use 1 worker**")
    assert results.answer.endswith(
        "Training time with the state saved, against at the end of an epoch: every 50 steps +0.0% [0.0, 0.0], within the noise (3 workers)."
    )
    assert "checkpoints.png" in drawn


def test_a_sweep_of_saved_states_says_nothing_else(tmp_path, drawn):
    rows = weak(counts=(3,))
    results = sweep_results.conclude(made(tmp_path, [*rows, *(dataclasses.replace(row, checkpoint_every=50) for row in rows)]))
    assert results.answer == advice_text.answers(results.found)
    assert results.answer.startswith("Training time with the state saved, against at the end of an epoch: every 50 steps ")


def test_hosts_no_slower_than_others_are_not_blamed(tmp_path):
    rows = weak(counts=(1, 2, 3, 4), repeats=1)
    folder = made(tmp_path, rows)
    for row in rows:
        # From 3 workers on all hosts are slower; the host that joins at 4 is slower than these.
        own = dict.fromkeys(row.hosts.split(), 0.07 if row.workers < 3 else 0.09)
        if row.workers == 4:
            own[row.hosts.split()[3]] = 0.12
        for host, seconds in own.items():
            taken_apart(folder, row, hosts=[host], forward_backward=seconds)
    assert sweep_results._quick(sweep_results._samples(folder, rows), rows) == {2, 3}


def test_without_samples_nothing_is_known_of_newcomers(tmp_path):
    """Where a host has no samples nothing is known of those that joined."""
    rows = weak(counts=(1, 2), repeats=1)
    folder = made(tmp_path, rows)
    taken_apart(folder, rows[0])
    taken_apart(folder, rows[1], hosts=rows[1].hosts.split()[:1])
    assert sweep_results._quick(sweep_results._samples(folder, rows), rows) == set()


# --- what to do next


def following(tmp_path, rows, hosts):
    return sweep_results.conclude(made(tmp_path, rows, {**RECORD, "hosts": hosts})).following


def cluster(count, network="10.0.0."):
    return [f"node{number} {network}{number}" for number in range(1, count + 1)]


def parts(command):
    return dict(word.split("=", 1) for word in command.split() if "=" in word)


def test_next_command_measures_missing_numbers_of_workers(tmp_path, drawn):
    """Where numbers of workers lack the next command measures enough of them."""
    label, command = following(tmp_path, weak(counts=(1, 2)), cluster(5))
    assert label == "measure for an answer"
    assert parts(command) == {"sweep": "pi", "workers": "1-3", "repeats": "3", "epochs": "3"}
    rows = weak(counts=(1, 2, 3), repeats=int(parts(command)["repeats"]))
    (tmp_path / "then").mkdir()
    assert following(tmp_path / "then", rows, cluster(5))[0] == "train with it", "it gave an answer"


def test_no_command_asks_for_absent_hosts(tmp_path, drawn):
    folder = made(tmp_path, weak(counts=(1, 2)), {**RECORD, "hosts": cluster(2)})
    results = sweep_results.conclude(folder)
    assert results.following == ("train with it", "ansible-playbook train.yml -e config=sweeps/pi/config.yml -e workers=1")
    assert "different numbers of workers, and the inventory has 2 hosts: add hosts to it, and measure again." in results.answer
    assert "ansible-playbook" not in results.answer


def crooked():
    """Repeats that agree, on no curve: as of workers that take each other's cores."""
    rows = trials(step(0.08, 0.002, 8e-9), counts=(1, 2, 3, 4, 5), repeats=3, work=WEAK_WORK)
    return [dataclasses.replace(row, images_per_s=row.images_per_s * (0.4 if row.workers == 3 else 1)) for row in rows]


def test_shared_machine_is_not_measured_again(tmp_path, drawn):
    """Workers of one machine are not measured again for a curve that they cannot lie on."""
    folder = made(tmp_path, crooked(), {**RECORD, "hosts": cluster(5, "127.0.0.")})
    results = sweep_results.conclude(folder)
    assert "These workers share one machine and take each other's cores, which measuring again does not change." in results.answer
    assert results.following[0] == "train with it"


def test_measured_anew_under_another_name_keeps_the_configuration(tmp_path, drawn):
    label, command = following(tmp_path, crooked(), cluster(5))
    assert label == "measure for an answer"
    assert (parts(command)["sweep"], parts(command)["config"]) == ("pi-2", "sweeps/pi/config.yml")


def test_single_measurements_are_repeated_with_all_intervals(tmp_path, drawn):
    """Single measurements of saved states are repeated with all intervals."""
    rows = [dataclasses.replace(row, checkpoint_every=every) for every in (0, 50) for row in weak(counts=(3,), repeats=1)]
    label, command = following(tmp_path, rows, cluster(5))
    assert (label, parts(command)["checkpoint_every"], parts(command)["repeats"]) == ("measure more", "0,50", "3")


@pytest.mark.parametrize("counts", [(1, 2), (1, 2, 3)])
def test_the_terminal_ends_with_one_command(tmp_path, drawn, counts):
    folder = made(tmp_path, weak(counts=counts), {**RECORD, "hosts": cluster(5)})
    shown = sweep_results.conclude(folder).shown("sweeps/pi")
    assert shown.count("ansible-playbook ") == 1, shown
    assert shown.splitlines()[-2:][0] == "Next"


def test_a_sweep_on_columns_counts_examples(tmp_path, drawn):
    folder = made(tmp_path, weak(), {**RECORD, "called": "example"})
    shown = sweep_results.conclude(folder).shown("sweeps/pi")
    analysis = (folder / "analysis.md").read_text()
    assert "examples/s" in shown
    assert "64 examples per worker and step" in analysis
    assert "images" not in shown.replace("images_per_s", "") + analysis.replace("images_per_s", "")


def test_medians_have_ranges_and_no_deviation(tmp_path, drawn):
    """A table of medians has the range beside them and no deviation of a mean."""
    rows = [timing(1, 1, 1000.0), timing(1, 2, 900.0), timing(2, 1, 1800.0)]
    rows = [dataclasses.replace(row, seconds_end_to_end=seconds) for row, seconds in zip(rows, (60.0, 66.5, 40.0), strict=True)]
    shown = sweep_results.conclude(made(tmp_path, rows)).shown("sweeps/pi").splitlines()
    assert "end to end s  least to most" in shown[1]
    assert "60.0 to 66.5" in shown[2]
    assert shown[3].split()[:4] == ["2", "1", "40.0", "-"]


# --- the split


def test_split_has_a_bar_for_every_host():
    """The split has a bar for every host at every number of workers."""
    phases = {"input": 1.0, "forward_backward": 50.0, "compression": 0.0, "all_reduce": 5.0, "apply": 1.0}
    actual = sweep_results._profile_bars({2: {"a": phases, "b": phases}, 1: {"a": phases}})
    assert list(actual) == ["1 worker: a", "2 workers: a", "2 workers: b"]


def test_of_many_bars_only_the_slowest_shows():
    """Of many bars only the slowest host is shown at each number."""

    def phases(own):
        return {"input": 0.0, "forward_backward": own, "compression": 0.0, "all_reduce": 99.0 - own, "apply": 0.0}

    actual = sweep_results._profile_bars({n: {f"h{k}": phases(50.0 + k) for k in range(n)} for n in range(1, 9)})
    assert list(actual)[:2] == ["1 worker: h0", "2 workers: h1, slowest"]
    assert len(actual) == 8


@pytest.mark.parametrize("slower", [(), (4, 5)])
def test_shared_machine_has_no_wire_or_slow_host(tmp_path, drawn, slower):
    rows = trials(step(0.08, 0.002, 8e-9), counts=(1, 2, 3, 4, 5), repeats=3, work=WEAK_WORK)
    rows = [dataclasses.replace(row, images_per_s=row.images_per_s / (1.12 if row.workers in slower else 1)) for row in rows]
    for network, networked in (("127.0.0.", False), ("10.0.0.", True)):
        (tmp_path / network).mkdir()
        folder = made(tmp_path / network, rows, {**RECORD, "hosts": cluster(5, network)})
        sweep_results.conclude(folder)
        text = (folder / "analysis.md").read_text()
        assert ("## The wire: " in text) == networked
        assert ("the wire alone needs" in text) == networked
        assert "slow host, it seems" not in text or networked
        assert ("take each other's cores" in text) == (bool(slower) and not networked)
