"""How many workers, and the text that says why: synthetic sweeps with known answers."""

import dataclasses
import json
import re

import numpy as np
import pytest

from control.campaign.timings import WEAK
from control.common.text import markdown_table
from control.sweep.scaling import advice, advice_text
from control.sweep.scaling.advice import Extras, Findings, Gain, Study
from control.sweep.scaling.fitting import Work, fit
from tests.unit.timing_samples import AT_100_MBIT, STRONG_WORK, WEAK_WORK, lost, noise_only, own_work, step, strong_step, timing, trials
from trainer.common.errors import LockstepError

WORKS = [WEAK_WORK, STRONG_WORK]
NOTHING = Extras()
SPLIT = {
    2: {
        "node1": {"input": 1.0, "forward_backward": 70.0, "compression": 3.0, "all_reduce": 90.0, "apply": 4.0},
        "node2": {"input": 1.0, "forward_backward": 99.0, "compression": 3.0, "all_reduce": 61.0, "apply": 4.0},
    }
}


def studies(rows, works, sweep="", own=None):
    return [Study.of_rows(group, work, sweep, own) for work, group in advice.groups(rows, works)]


def analysis(rows, extras=NOTHING, works=WORKS):
    return advice_text.analysis(Findings(studies(rows, works, "pi"), rows, extras))


def answer(rows, extras=NOTHING, works=WORKS):
    """Paragraphs of the answer: what to use, why, end-to-end times."""
    return analysis(rows, extras, works).split("\n\n## ")[0].split("\n\n")[1:]


def section(text, title):
    return text.split(f"## {title}\n\n")[1].split("\n\n## ")[0]


def curved(*rates):
    """Rows without noise whose images/s are as given, for 1, 2, 3 ... workers."""
    return trials(lambda n: WEAK_WORK.images(n) / rates[n - 1], counts=range(1, len(rates) + 1))


def advised(rows, work=WEAK_WORK):
    return advice._advise(fit(rows, work))


@pytest.mark.parametrize(
    ("rates", "workers"),
    [
        ([100], 1),
        ([100, 200, 300], 3),
        ([100, 109.9], 1),
        ([100, 110], 2),
        ([100, 150, 160, 165], 2),
        ([100, 90, 85], 1),
        # The second only pays for the network; all three together are worth it.
        ([100, 90, 130], 3),
        ([100, 90, 120], 1),
        ([100, 200, 190, 280], 4),
        # The fifth adds too little, whatever the sixth does to make up for it.
        ([100, 200, 300, 400, 401, 480], 4),
    ],
)
def test_workers_are_added_while_they_are_worth_it(rates, workers):
    assert advice._best(dict(enumerate(rates, 1))) == workers


def test_perfect_scaling_uses_all_of_many_workers():
    assert advice._best({n: 100.0 * n for n in range(1, 101)}) == 100


def test_the_count_begins_at_the_fewest_measured():
    assert advice._best({3: 100, 4: 120, 5: 121}) == 4
    # The eighth must bring half of 1/7 only.
    assert advice._best({7: 100, 8: 107.5}) == 8
    assert advice._best({2: 100, 3: 107.5}) == 2


def test_without_communication_use_all():
    rows = trials(step(0.08), noise=0.02)
    assert advised(rows).workers == 5
    first, why, _ = answer(rows)
    assert re.fullmatch(
        r"\*\*Use 5 workers\*\*, the most that were measured: 5\.00 times the speed of one \[4\.\d\d, 5\.00\], and the 5th still brings "
        r"\+25% \[2\d, 25\]\. By the model, not measured, one more brings \+20% \[1\d, 20\]\. "
        r"All resamples of the measurements give this answer\.",
        first,
    )
    assert re.fullmatch(
        r"0% \[0, \d\] of a step at 5 workers is communication: 80 ms are 80 ms of own work, 0\.0 ms of messages and 0\.0 ms of bytes\. "
        r"Bytes have no visible cost; the wire alone needs at 1 Gbit/s 0\.19 s and at 100 Mbit/s 1\.89 s\.",
        why,
    )


def test_at_100_mbit_use_one():
    rows = trials(step(0.077, b=AT_100_MBIT), noise=0.02)
    assert advised(rows).workers == 1
    first, why, times = answer(trials(step(0.077, b=AT_100_MBIT)), Extras(mbit_s=94.2))
    assert first == (
        "**Use 1 worker**: the 2nd slows it down, -88% [-88, -88], the 3rd brings +14% [14, 14], the 4th brings +19% [19, 19]. "
        "All 5 together make 0.20 times the speed of 1 worker; from 1.46 times on they would be worth it. "
        "All resamples of the measurements give this answer."
    )
    assert why == (
        "96% [96, 96] of a step at 5 workers is communication: 1,966 ms are 77 ms of own work, 0.0 ms of messages and 1,889 ms of bytes. "
        "Bytes move as fast as at 100 Mbit/s; the wire alone needs at the measured 94.2 Mbit/s 2.00 s, at 1 Gbit/s 0.19 s "
        "and at 100 Mbit/s 1.89 s."
    )
    assert times == (
        "From launch to end, 3 epochs took the least time with 1 worker: 154.4 s (median). Weak scaling: 64 images per worker and step, "
        "14.8 MB of gradients; trials of 3 epochs, state saved at the end of an epoch."
    )


def test_a_known_best_number_in_between():
    """0.4 s shared by all, 21 ms a message: 3 workers are worth it (+11%), the 4th and 5th slow it down."""
    assert advised(trials(strong_step(0.4, a=0.021), noise=0.005, work=STRONG_WORK), STRONG_WORK).workers == 3
    rows = trials(strong_step(0.4, a=0.021), work=STRONG_WORK)
    actual = advised(rows, STRONG_WORK)
    assert actual.workers == 3
    assert [gain.workers for gain in actual.gains] == [2, 3, 4, 5, 6]
    assert [gain.share for gain in actual.gains[:4]] == pytest.approx([0.653, 0.113, -0.038, -0.089], abs=0.001)
    assert [gain.measured for gain in actual.gains] == [True] * 4 + [False]
    first, _, times = answer(rows)
    assert first == (
        "**Use 3 workers**: 1.84 times the speed of one [1.84, 1.84]; the 4th slows it down, -4% [-4, -4], "
        "the 5th slows it down, -9% [-9, -9]. All resamples of the measurements give this answer."
    )
    assert times == (
        "From launch to end, 3 epochs took the least time with 3 workers: 91.5 s (median). Strong scaling: 320 images per step, "
        "shared by all workers, 14.8 MB of gradients; trials of 3 epochs, state saved at the end of an epoch."
    )


@pytest.mark.parametrize(
    ("share", "low", "high", "message"),
    [
        (0.06, 0.02, 0.09, "brings +6% [2, 9]"),
        (-0.001, -0.01, 0.05, "makes no measurable difference, +0% [-1, 5]"),
        (0.02, -0.01, 0.05, "makes no measurable difference, +2% [-1, 5]"),
        (-0.02, -0.05, 0.001, "makes no measurable difference, -2% [-5, 0]"),
        (-0.04, -0.06, -0.02, "slows it down, -4% [-6, -2]"),
    ],
)
def test_words_follow_the_interval(share, low, high, message):
    actual = advised(trials(strong_step(0.4, a=0.021), work=STRONG_WORK), STRONG_WORK)
    gains = [Gain(gain.workers, share, low, high, True) if gain.workers == 4 else gain for gain in actual.gains]
    study = Study.of_rows(trials(strong_step(0.4, a=0.021), work=STRONG_WORK), STRONG_WORK)
    study = dataclasses.replace(study, advice=dataclasses.replace(actual, gains=tuple(gains)))
    assert f"[1.84, 1.84]; the 4th {message}, the 5th slows it down, -9% [-9, -9]. " in advice_text.answer(study, NOTHING)


def test_the_speedup_has_an_interval():
    made = fit(trials(step(0.08, 0.002, 1e-9), noise=0.03), WEAK_WORK)
    actual = advice._advise(made)
    assert (actual.workers, actual.speedup) == (5, pytest.approx(made.images_per_s(5) / made.images_per_s(1)))
    low, high = np.quantile(made.draws("images_per_s", 5) / made.draws("images_per_s", 1), [0.025, 0.975])
    assert (actual.speedup_low, actual.speedup_high) == pytest.approx((low, high))


def test_a_close_answer_is_called_so():
    """The 3rd brings just what it must."""
    rows = trials(strong_step(0.4, a=0.0233), noise=0.03, work=STRONG_WORK)
    actual = advised(rows, STRONG_WORK)
    (first, often), (second, rest) = actual.share_of_resamples.items()
    assert ({first, second}, often + rest) == ({2, 3}, pytest.approx(1))
    assert often > rest > 0.2
    other = 5 - actual.workers
    own, others = (f"{actual.share_of_resamples[n]:.0%}" for n in (actual.workers, other))
    message = f"Of the resamples of the measurements {own} give this answer, {others} {other} workers. More repeats would decide it."
    assert answer(rows)[0].endswith(message)


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({3: 1.0}, "All resamples of the measurements give this answer."),
        ({3: 0.996, 4: 0.004}, "Nearly all resamples of the measurements give this answer."),
        ({3: 0.9, 4: 0.08, 2: 0.02}, "Of the resamples of the measurements 90% give this answer, 8% 4 workers, 2% 2 workers."),
        ({1: 0.6, 3: 0.4}, "Of the resamples of the measurements 40% give this answer, 60% 1 worker. More repeats would decide it."),
    ],
)
def test_how_certain_the_answer_is(shares, message):
    study = Study.of_rows(trials(strong_step(0.4, a=0.021), work=STRONG_WORK), STRONG_WORK)
    study = dataclasses.replace(study, advice=dataclasses.replace(study.advice, share_of_resamples=shares))
    assert advice_text.answer(study, NOTHING).split("\n\n")[0].endswith(f"-9% [-9, -9]. {message}")


def test_a_slow_fourth_host_is_named():
    rows = trials(step(0.08, 0.002, 3e-9, slow=4, d=0.03))
    actual = advised(rows)
    assert actual.workers == 5
    assert answer(rows)[1].endswith(
        "From 4 workers on a step waits for a slow host, it seems for node4: its own work takes 38% longer, which makes a step of "
        "4 workers 19% longer than the other numbers of workers suggest. As fast as the others it would bring +24%. "
        "`ansible-playbook doctor.yml` shows how fast each host is."
    )
    assert "80 ms of own work, 16 ms of messages, 71 ms of bytes and 30 ms of waiting for a slow host." in answer(rows)[1]
    assert "| bytes | slow host | error |" in analysis(rows)


def test_what_working_together_costs_at_all_is_named():
    rows = trials(lambda n: 0.08 + (0.05 if n > 1 else 0))
    assert answer(rows)[1].endswith(
        "Working together at all costs 50 ms [50, 50] per step, however many workers there are; "
        "a second host that is slower than the first looks the same."
    )
    assert "| bytes | working together | error |" in analysis(rows)


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        (1.13, "13% longer than the other numbers of workers suggest, as if node4, which joins there, were slow; "),
        (0.89, "11% less than the other numbers of workers suggest; "),
    ],
)
def test_an_odd_number_of_workers_is_named(factor, message):
    rows = trials(step(0.08, 0.002, 8e-9))
    rows = [dataclasses.replace(row, images_per_s=row.images_per_s / (factor if row.workers == 4 else 1)) for row in rows]
    assert answer(rows)[1].endswith(f"With 4 workers a step takes {message}`ansible-playbook doctor.yml` shows how fast each host is.")


def test_without_trials_of_one_worker():
    rows = trials(step(0.077, b=AT_100_MBIT), counts=(2, 3, 4, 5))
    actual = advised(rows)
    assert (actual.fewest, actual.workers) == (2, 5)
    assert answer(rows)[0] == (
        "**Use 5 workers**, the most that were measured: 1.60 times the speed of 2 [1.60, 1.60], and the 5th still brings "
        "+17% [17, 17]. By the model, not measured, one more brings +15% [15, 15]. All resamples of the measurements give this answer. "
        "Fewer than 2 workers were not measured."
    )


def test_refusal_stands_in_place_of_the_answer():
    """A refusal stands where the answer would and medians are told."""
    rows = noise_only(0)
    first, medians, about = answer(rows)
    assert first == (
        "**No answer**: images/s of 1 worker are 786 with a 95% interval from 455 to 1,400, 120% wide (limit: 30%). "
        "The repeats of 4 workers lie 170% apart. Measure more often, with no other work on the hosts: "
        "`ansible-playbook sweep.yml -e sweep=pi -e workers=1-5 -e repeats=10 -e epochs=3`"
    )
    study = studies(rows, WORKS, "pi")[0]
    rates = ", ".join(f"{row['workers']}: {row['images_per_s']['median']:,.0f}" for row in study.measured())
    assert medians.startswith(f"From the medians alone, with no account of noise: {study.by_medians()} worker")
    assert f"(median images/s by workers: {rates})." in medians
    assert about.startswith("Weak scaling: 64 images per worker and step")
    text = analysis(rows)
    assert "## Measured: weak scaling" in text
    assert "## The model of a step" not in text
    assert text.index("## Start-up: weak scaling") < text.index("## How this was computed")


def test_answer_that_contradicts_its_medians_is_none():
    """One worker was the answer beside 805, 697 and 972 images/s."""
    study = Study.of_rows([timing(n, 1, rate) for n, rate in ((1, 805), (2, 697), (3, 972))], WEAK_WORK)
    assert advice_text._from_medians(study) == (
        "Nor do the medians alone give one: 3 workers are 1.21 times as fast as 1 (median images/s by workers: 1: 805, 2: 697, 3: 972), "
        "and noise alone may do that. From launch to end, 3 epochs took the least time with 3 workers: 133.5 s (median)."
    )
    assert study.to_train() == 3


def test_model_that_contradicts_its_medians_is_none():
    (study,) = studies(curved(805, 697, 972), [WEAK_WORK], "pi")
    assert study.advice is None
    first, second, *_ = advice_text.answer(study, NOTHING).split("\n\n")
    assert first == (
        "**No answer**: no number of workers is clearly best: 3 workers are 1.21 times as fast as 1, and 2 are slower (median images/s by "
        "workers: 1: 805, 2: 697, 3: 972). Measure more often: "
        "`ansible-playbook sweep.yml -e sweep=pi -e workers=1-3 -e repeats=5 -e epochs=3`"
    )
    assert second.startswith("From launch to end, ")


def test_what_a_slower_answer_saves_is_said():
    study = Study.of_rows([timing(n, 1, rate) for n, rate in ((1, 100), (2, 108))], WEAK_WORK)
    assert advice_text._from_medians(study).startswith(
        "From the medians alone, with no account of noise: 1 worker; 2 workers are 1.08 times as fast as 1 (median images/s by workers: 1: "
        "100, 2: 108), less than the 10% that a worker must bring. "
    )


def test_medians_follow_the_same_rule_with_gaps():
    def study(**rates):
        return Study.of_rows([timing(int(n[1:]), 1, rate) for n, rate in rates.items()], WEAK_WORK)

    assert study(n1=100, n3=122, n5=140).by_medians() == 3
    assert study(n1=100, n3=120, n5=140).by_medians() == 1
    assert study(n1=100, n3=100, n5=147).by_medians() == 5


def test_a_trial_that_lacks_a_value():
    rows = [dataclasses.replace(timing(2, 3, 640.0), seconds_training=None, images_per_s=0.0)]
    with pytest.raises(
        LockstepError,
        match=r"^timings\.csv: trial 3 of 2 workers is SUCCEEDED without seconds_training, images_per_s; "
        r"remove its line to measure it anew$",
    ):
        studies(rows, WORKS)


def test_one_measured_number():
    rows = trials(step(0.1), counts=(4,))
    first, about = answer(rows)
    assert first.startswith("**No answer**: only 4 workers were measured; ")
    assert about.startswith("Weak scaling: ")
    assert "| 4 | 3 | 56.9 | 56.9 ± 0.0 | 46.9 | 46.9 ± 0.0 | 2,560 | 2,560 ± 0 | 1.00 | 100% |" in analysis(rows)
    assert "speedup over 4 workers | efficiency over 4 workers |" in analysis(rows)


def test_no_trial_succeeded():
    rows = [lost(row) for row in trials(step(0.1), counts=(1, 2), repeats=1)]
    text = analysis(rows)
    assert text.startswith("# How many workers?\n\n**No answer**: no trial succeeded; ")
    assert "## Measured" not in text
    assert section(text, "Failed trials") == (
        "Left out above: 2 of 2.\n\n"
        "- 1 worker, repeat 1, weak scaling, 3 epochs, state saved at the end of an epoch: FAILED\n"
        "- 2 workers, repeat 1, weak scaling, 3 epochs, state saved at the end of an epoch: FAILED"
    )
    json.dumps(Findings(studies(rows, WORKS), rows).as_dict(), allow_nan=False)


def test_failed_trials_change_nothing_but_their_list():
    rows = trials(step(0.08, 0.002, 8e-9), noise=0.01)
    text = analysis([*rows, lost(timing(2, 4, 1.0, checkpoint_every=50))])
    before, failed = text.split("## Failed trials\n\n")
    assert failed.startswith(
        "Left out above: 1 of 16.\n\n- 2 workers, repeat 4, weak scaling, 3 epochs, state saved every 50 steps: FAILED\n"
    )
    assert analysis(rows).startswith(before)
    assert "## Failed trials" not in analysis(rows)


def test_table_of_measurements():
    rows = [timing(1, 1, 1000.0), timing(1, 2, 1200.0), timing(1, 3, 1100.0), timing(2, 1, 1650.0)]
    assert section(analysis(rows), "Measured: weak scaling").splitlines()[2:] == [
        "| workers | trials | end-to-end s: median | mean ± std | training s: median | mean ± std | images/s: median | mean ± std "
        "| speedup | efficiency |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| 1 | 3 | 119.1 | 119.7 ± 10.0 | 109.1 | 109.7 ± 10.0 | 1,100 | 1,100 ± 100 | 1.00 | 100% |",
        "| 2 | 1 | 82.7 | 82.7 ± - | 72.7 | 72.7 ± - | 1,650 | 1,650 ± - | 1.50 | 75% |",
    ]


def test_table_of_the_model():
    lines = section(analysis(trials(step(0.08, 0.002, 8e-9))), "The model of a step: weak scaling").splitlines()
    assert lines[0].startswith(
        "Fitted: own work c 80 ms [80, 80], a message a 2 ms [2, 2], a byte b 8 ns [8, 8]. "
        "The repeats vary by 0.0% (standard deviation). Milliseconds of a step; measured: the median."
    )
    assert lines[2] == ("| workers | measured ms | T(n) ms | own work | messages | bytes | error | held out | images/s by the model |")
    assert lines[4].startswith("| 1 | 80.0 | 80.0 | 80.0 | 0.0 | 0.0 | ")
    assert lines[8].startswith("| 5 | 284.9 | 284.9 | 80.0 | 16.0 | 188.9 | ")
    assert lines[8].endswith("| 1,123 [1,123, 1,123] |")


def test_errors_of_the_model_are_against_the_median():
    study = studies(trials(step(0.08, 0.002, 8e-9), noise=0.02), WORKS)[0]
    for row in study.modelled():
        assert row["error_percent"] == pytest.approx((row["model_ms"] / row["measured_ms"] - 1) * 100)
        assert row["model_ms"] == pytest.approx(row["own_work_ms"] + row["messages_ms"] + row["bytes_ms"] + row["jump_ms"])
        assert row["held_out_error_percent"] == study.fit.held_out[row["workers"]]


def test_start_up_is_what_is_not_training():
    rows = [timing(n, repeat, 1000.0 * n) for n in (1, 2) for repeat in (1, 2)]
    assert section(analysis(rows), "Start-up: weak scaling") == "\n".join(
        [
            "Of the end-to-end time 8% to 14% is not training but start-up, snapshots and the end. "
            "With more than 3 epochs it counts for less.",
            "",
            "| workers | end-to-end s | not training s | share |",
            "| ---: | ---: | ---: | ---: |",
            "| 1 | 130.0 | 10.0 | 8% |",
            "| 2 | 70.0 | 10.0 | 14% |",
        ]
    )


def test_the_wire():
    rows = trials(step(0.08))
    assert section(analysis(rows, Extras(mbit_s=941.0)), "The wire: weak scaling") == "\n".join(
        [
            "In a step of 5 workers each sends and receives 23.6 MB. That alone takes:",
            "",
            "| link | ms per step |",
            "| --- | ---: |",
            "| 100 Mbit/s | 1,888.6 |",
            "| 1 Gbit/s | 188.9 |",
            "| 941 Mbit/s (measured) | 200.7 |",
        ]
    )
    assert "(measured)" not in analysis(rows)
    assert "## The wire" not in analysis(trials(step(0.08), counts=(1,)))


def saved(every, *seconds, workers=4):
    """Trials by steps between states and seconds of training."""
    rows = [timing(workers, repeat, 2000.0, checkpoint_every=every) for repeat in range(1, len(seconds) + 1)]
    return [
        dataclasses.replace(row, seconds_training=value, seconds_end_to_end=value + 10) for row, value in zip(rows, seconds, strict=True)
    ]


def test_cost_of_saved_states():
    rows = [*saved(50, 110, 111, 112), *saved(1000, 100, 101, 102), *saved(200, 101, 102, 103)]
    assert section(analysis(rows), "What saved states cost") == "\n".join(
        [
            "Mean ± standard deviation of training seconds; the difference of means with its 95% interval (Welch's t).",
            "",
            "| scaling | workers | epochs | state saved | trials | training s | more than the rarest |",
            "| --- | ---: | ---: | --- | ---: | ---: | --- |",
            "| weak | 4 | 3 | every 1,000 steps | 3 | 101.0 ± 1.0 | - |",
            "| weak | 4 | 3 | every 200 steps | 3 | 102.0 ± 1.0 | +1.0% [-1.3, 3.2], within the noise |",
            "| weak | 4 | 3 | every 50 steps | 3 | 111.0 ± 1.0 | +9.9% [7.7, 12.1] |",
        ]
    )


def test_the_end_of_an_epoch_is_the_rarest():
    rows = Findings([], [*saved(1000, 105, 105), *saved(0, 100, 100)]).saved_states
    assert [(row["checkpoint_every"], row["compared_with"], row["more_percent"]) for row in rows] == [
        (0, 0, 0.0),
        (1000, 0, pytest.approx(5.0)),
    ]


def test_saved_states_are_compared_at_equal_workers():
    assert Findings([], [*saved(50, 110), *saved(1000, 100, workers=3)]).saved_states == []
    assert "What saved states cost" not in analysis(saved(50, 110, 111))


def test_welch():
    # Welch's interval of the difference of two means, by hand: 10 +- t(0.975, 2.94) * sqrt(4/3 + 1/3).
    low, high = advice._difference([108, 110, 112], [99, 100, 101])
    assert (low, high) == (pytest.approx(10 - 4.154, abs=0.02), pytest.approx(10 + 4.154, abs=0.02))
    assert advice._difference([110], [99, 100]) == (None, None)
    assert advice._difference([110, 110], [100, 100]) == (pytest.approx(10), pytest.approx(10))


def test_energy_is_estimate_or_measured_and_says_which():
    rows = [timing(n, repeat, 1000.0 * n) for n in (1, 2) for repeat in (1, 2)]
    # Training takes 40 s per epoch with one worker, 20 s with two; 5 W each.
    assert section(analysis(rows, Extras(watts_per_node=5.0)), "Energy: weak scaling") == "\n".join(
        [
            "All hosts together, mean ± standard deviation. 1 worker needed the least, 200 J per epoch (median; "
            "estimate from watts_per_node). "
            "The meter counts whole trials, start-up included; the estimate counts training alone.",
            "",
            "| workers | trials | joules per epoch | source |",
            "| ---: | ---: | ---: | --- |",
            "| 1 | 2 | 200 ± 0 | estimate from watts_per_node |",
            "| 2 | 2 | 200 ± 0 | estimate from watts_per_node |",
        ]
    )
    metered = {row.trial: 600.0 * row.workers + row.repeat * 3 for row in rows if row.workers == 2}
    text = section(analysis(rows, Extras(watts_per_node=5.0, joules=metered)), "Energy: weak scaling")
    assert "| 2 | 2 | 402 ± 1 | measured by the meter |" in text
    assert "| 1 | 2 | 200 ± 0 | estimate from watts_per_node |" in text
    assert "## Energy" not in analysis(rows)
    assert "## Energy" not in analysis(rows, Extras(joules={}))


def test_split_of_a_step():
    text = analysis(trials(step(0.08), counts=(1, 2)), Extras(split=SPLIT))
    assert section(text, "A step on every host") == "\n".join(
        [
            "Milliseconds of a step on each host. With 2 workers: node2 is the slowest: 107 ms of its own work per step, "
            "1.37 times that of node1; "
            "node1 waits for it in the all-reduce.",
            "",
            "| workers | host | input | forward/backward | compression | all-reduce | apply | step |",
            "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
            "| 2 | node1 | 1.0 | 70.0 | 3.0 | 90.0 | 4.0 | 168.0 |",
            "| 2 | node2 | 1.0 | 99.0 | 3.0 | 61.0 | 4.0 | 168.0 |",
        ]
    )


def test_both_scalings_have_their_own_answer_and_tables():
    rows = [*trials(step(0.08)), *trials(strong_step(0.4, a=0.02), work=STRONG_WORK)]
    text = analysis(rows)
    assert "**Use 5 workers**" in text
    assert "**Use 3 workers**" in text
    for scaling in ("weak", "strong"):
        assert f"## Measured: {scaling} scaling" in text
        assert f"({scaling} scaling)" in section(text, "How this was computed")


def test_group_with_most_numbers_of_workers_is_studied():
    rows = [*trials(step(0.08), counts=(1, 2, 3)), *saved(50, *range(110, 120), workers=3)]
    assert {row.checkpoint_every for row in studies(rows, WORKS)[0].rows} == {0}
    often = [dataclasses.replace(row, checkpoint_every=50) for row in trials(step(0.08))]
    assert {row.checkpoint_every for row in studies([*rows, *often], WORKS)[0].rows} == {50}
    rare = [dataclasses.replace(row, checkpoint_every=1000) for row in trials(step(0.08))]
    assert {row.checkpoint_every for row in studies([*often, *rare], WORKS)[0].rows} == {1000}


def test_everything_is_in_the_summary():
    rows = [*trials(step(0.08, 0.002, 8e-9), noise=0.01), lost(timing(5, 4, 1.0)), *saved(50, 110, 111)]
    extras = Extras(mbit_s=941.0, watts_per_node=5.0, split=SPLIT)
    actual = json.loads(json.dumps(Findings(studies(rows, WORKS, "pi"), rows, extras).as_dict(), allow_nan=False))
    study = actual["studies"][0]
    assert (study["scaling"], study["batch"], study["epochs"], study["checkpoint_every"]) == ("weak", 64, 3, 0)
    assert study["refusal"] is None
    assert study["answer"]["workers"] == 1
    assert study["fit"]["compute_s"] == pytest.approx(0.08, rel=0.03)
    assert set(study["fit"]["held_out_error_percent"]) == {"1", "2", "3", "4", "5"}
    assert study["fit"]["effective_mbit_s"] == pytest.approx(1000, rel=0.15)
    assert [row["workers"] for row in study["measured"]] == [row["workers"] for row in study["model"]] == [1, 2, 3, 4, 5]
    assert [row["mbit_s"] for row in study["wire"]] == [100.0, 1000.0, 941.0]
    assert [row["source"] for row in study["energy"]] == ["estimate from watts_per_node"] * 5
    assert actual["failed"] == [{"scaling": "weak", "checkpoint_every": 0, "epochs": 3, "workers": 5, "repeat": 4}]
    assert [row["checkpoint_every"] for row in actual["checkpoints"]] == [0, 50]
    assert actual["split_ms"]["2"]["node2"]["forward_backward"] == 99.0
    refused = Findings(studies(noise_only(0), WORKS, "pi"), noise_only(0)).as_dict()["studies"][0]
    assert (refused["answer"], refused["fit"], refused["model"]) == (None, None, [])
    assert refused["refusal"].startswith("images/s of 1 worker are 786")


def test_names_can_not_break_a_table():
    assert markdown_table(["host", "ms"], [["a|b", 1.5]]) == "| host | ms |\n| --- | ---: |\n| a\\|b | 1.5 |"


def test_ordinals():
    message = [advice_text._ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 111)]
    assert message == ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "23rd", "111th"]


def test_no_more_than_three_further_workers_are_listed():
    rows = trials(strong_step(0.4, a=0.021), counts=(1, 2, 4, 6, 8, 10), work=STRONG_WORK)
    assert answer(rows)[0] == (
        "**Use 3 workers** (by the model; 3 workers were not measured): 1.84 times the speed of one [1.84, 1.84]; "
        "the 4th slows it down, -4% [-4, -4], the 5th slows it down, -9% [-9, -9], the 6th slows it down, -10% [-10, -10]. "
        "All resamples of the measurements give this answer."
    )


def test_a_gradient_without_bytes():
    """A model that sends nothing: bytes can't be fitted, and cost nothing."""
    work = Work(WEAK, 64, 0)
    assert advised(trials(step(0.08), noise=0.01, work=work), work).workers == 5


def test_sweep_of_saved_states_answers_only_that():
    rows = [*saved(1000, 100, 100.2, 99.8), *saved(50, 110, 110.2, 109.8)]
    assert Findings([], rows).about_saved_states
    text = analysis(rows)
    head, message = text.split("\n\n")[:2]
    assert head == "# What do saved states cost?"
    assert re.fullmatch(
        r"Training time with the state saved, against every 1,000 steps: every 50 steps \+10\.0% \[9\.\d, 10\.\d\] \(4 workers\)\.", message
    )
    assert advice_text.answers(Findings(studies(rows, WORKS), rows)) == message
    assert "**No answer**" not in text
    assert text.count("## What saved states cost") == 1
    assert not Findings([], [*rows, *saved(50, 110, workers=3)]).about_saved_states
    assert not Findings([], saved(50, 110)).about_saved_states


def test_every_group_of_saved_states_is_named():
    """Every group of saved states is named after the answer."""
    rows = [*trials(step(0.08)), *saved(50, 110, workers=2), *saved(1000, 105, workers=2), *saved(50, 120), *saved(1000, 100)]
    message = answer(rows)
    assert message[0].startswith("**Use 5 workers**")
    every = "every 1,000 steps P, noise unknown: a single trial; every 50 steps P, noise unknown: a single trial"
    assert re.sub(r"[+-][\d.]+%", "P", message[-1]) == " ".join(
        f"Training time with the state saved, against at the end of an epoch: {every} ({workers} workers)." for workers in (2, 4)
    )
    assert advice_text.answers(Findings(studies(rows, WORKS, "pi"), rows)) == "\n\n".join(message)


def test_groups_of_saved_states_show_their_differences():
    """Groups of saved states say in what they differ."""
    weak = [*saved(50, 110, 111), *saved(0, 100, 101)]
    strong = [dataclasses.replace(row, scaling="strong") for row in weak]
    longer = [dataclasses.replace(row, epochs=5) for row in weak]
    assert re.findall(r"\(4 .*?\)", advice_text.answers(Findings([], [*weak, *strong]))) == [
        "(4 workers, strong scaling)",
        "(4 workers, weak scaling)",
    ]
    assert re.findall(r"\(4 .*?\)", advice_text.answers(Findings([], [*weak, *longer]))) == [
        "(4 workers, 3 epochs)",
        "(4 workers, 5 epochs)",
    ]
    assert advice_text.answers(Findings([], trials(step(0.08)))) == ""


def test_own_work_is_a_column_with_its_source():
    rows = trials(step(0.08, 0.002, 8e-9))
    actual = studies(rows, WORKS, "pi", own=own_work(0.08, (2, 3)))
    lines = section(advice_text.analysis(Findings(actual, rows)), "The model of a step: weak scaling").splitlines()
    assert lines[0].endswith(
        "measured: the median. Own work apart: of the slowest host in profiled steps; c is fitted to it, too. "
        "Error: of the model against it. Held out: the error of predicting this number of workers from the others "
        "(a jump, if any, stays where it is)."
    )
    assert lines[2].startswith("| workers | measured ms | T(n) ms | own work | own work apart | messages | bytes | error |")
    assert lines[4].startswith("| 1 | 80.0 | 80.0 | 80.0 | - | 0.0 | 0.0 | ")
    assert lines[6].startswith("| 3 | 245.4 | 245.4 | 80.0 | 80.0 | 8.0 | 157.4 | ")
    summary = Findings(actual, rows).as_dict()["studies"][0]["model"]
    assert [row["own_work_measured_ms"] for row in summary] == [None, 80.0, 80.0, None, None]
