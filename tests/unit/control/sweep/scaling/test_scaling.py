"""The model of a step, its intervals, and when nothing is concluded: synthetic sweeps with known answers."""

import dataclasses

import numpy as np
import pytest

from control.sweep.scaling import fitting
from control.sweep.scaling.fitting import Refused, fit
from tests.unit.timing_samples import (
    BYTES,
    STRONG_WORK,
    WEAK_WORK,
    lost,
    noise_only,
    own_work,
    step,
    strong_step,
    timing,
    trials,
)

COUNTS = (1, 2, 3, 4, 5)
MIDDLE = {"c": 0.08, "a": 0.002, "b": 8e-9}
AGAIN = "ansible-playbook sweep.yml -e sweep=pi"


def slowed(rows, workers, factor):
    """The same trials, those of some number of workers slower."""
    return [dataclasses.replace(row, images_per_s=row.images_per_s / factor) if row.workers == workers else row for row in rows]


def test_images_of_a_step():
    assert [WEAK_WORK.images(n) for n in (1, 2, 5)] == [64, 128, 320]
    assert [STRONG_WORK.images(n) for n in (1, 2, 5)] == [320, 320, 320]


def test_images_of_step_are_mean_of_epoch():
    weak, strong = (dataclasses.replace(work, train_images=1000) for work in (WEAK_WORK, STRONG_WORK))
    assert [weak.images(n) for n in (1, 2, 5, 16)] == [1000 / 16, 1000 / 8, 1000 / 4, 1000]
    assert [strong.images(n) for n in (1, 5)] == [1000 / 4, 1000 / 4]
    assert dataclasses.replace(WEAK_WORK, train_images=640).images(5) == 320


def test_ragged_last_step_keeps_a_steps_seconds():
    """A ragged last step does not change the seconds of a step. 1,000 images in 4 steps of 5 workers, 0.2 s each: 1,250 images/s."""
    work = dataclasses.replace(WEAK_WORK, train_images=1000)
    assert fitting._step_seconds(timing(5, 1, 1250.0), work) == pytest.approx(0.2)
    actual = fit(trials(step(**MIDDLE), work=work), work)
    assert actual.step_s(5) == pytest.approx(step(**MIDDLE)(5))
    assert actual.images_per_s(5) == pytest.approx(250 / step(**MIDDLE)(5))


@pytest.mark.parametrize(("workers", "share"), [(2, 0.1), (6, 0.1), (7, 0.5 / 6), (51, 0.01)])
def test_what_a_worker_must_bring(workers, share):
    assert fitting.worth(workers) == pytest.approx(share)


@pytest.mark.parametrize(("seconds", "work"), [(step, WEAK_WORK), (strong_step, STRONG_WORK)])
def test_without_noise_the_parameters_are_found_exactly(seconds, work):
    actual = fit(trials(seconds(**MIDDLE), work=work), work)
    assert (actual.compute_s, actual.latency_s, actual.s_per_byte) == pytest.approx((0.08, 0.002, 8e-9), rel=1e-6)
    assert (actual.jump_from, actual.jump_s, actual.counts) == (None, 0.0, COUNTS)
    assert actual.noise == pytest.approx(0.0, abs=1e-12)
    assert list(actual.held_out) == list(COUNTS)
    assert list(actual.held_out.values()) == pytest.approx([0.0] * 5, abs=1e-6)


def test_noisy_parameters_are_found_within_the_noise():
    actual = fit(trials(step(**MIDDLE), noise=0.01, repeats=5), WEAK_WORK)
    assert actual.compute_s == pytest.approx(0.08, rel=0.02)
    assert actual.s_per_byte == pytest.approx(8e-9, rel=0.10)
    assert actual.latency_s == pytest.approx(0.002, abs=0.002)
    assert actual.noise == pytest.approx(0.01, rel=0.4)


def test_quantities_follow_from_the_formula():
    actual = fit(trials(step(**MIDDLE)), WEAK_WORK)
    seconds = 0.08 + 8 * 0.002 + 8 / 5 * BYTES * 8e-9
    before = 0.08 + 6 * 0.002 + 6 / 4 * BYTES * 8e-9
    assert actual.step_s(5) == pytest.approx(seconds)
    assert actual.parts_s(5) == pytest.approx((0.08, 0.016, 1.6 * BYTES * 8e-9, 0.0, 0.0))
    assert actual.images_per_s(5) == pytest.approx(320 / seconds)
    assert actual.gain(5) == pytest.approx(5 / 4 * before / seconds - 1)
    assert actual.communication_share(5) == pytest.approx(1 - 0.08 / seconds)
    assert actual.communication_share(1) == 0.0


def test_intervals_hold_the_truth():
    """95% intervals of 100 sweeps: nearly as many hold it as should, and they are of use."""
    seconds = step(**MIDDLE)
    truth = {"images_per_s": 256 / seconds(4), "gain": 4 / 3 * seconds(3) / seconds(4) - 1, "communication_share": 1 - 0.08 / seconds(4)}
    truth |= {"compute_s": 0.08, "latency_s": 0.002, "s_per_byte": 8e-9}
    actual = [fit(trials(seconds, noise=0.03, seed=seed), WEAK_WORK) for seed in range(100)]
    for name, true in truth.items():
        held = [low <= true <= high for low, high in (one.interval(name, 4) for one in actual)]
        assert sum(held) >= 85, name
    assert max(width(one.interval("images_per_s", 4)) for one in actual) < 0.15 * truth["images_per_s"]


def test_intervals_are_wider_the_more_noise():
    quiet, loud = (fit(trials(step(**MIDDLE), noise=noise), WEAK_WORK) for noise in (0.01, 0.03))
    assert width(quiet.interval("gain", 4)) < width(loud.interval("gain", 4))


def width(interval):
    return interval[1] - interval[0]


def test_the_same_rows_give_the_same_intervals():
    rows = trials(step(**MIDDLE), noise=0.03)
    assert fit(rows, WEAK_WORK).interval("step_s", 5) == fit(rows, WEAK_WORK).interval("step_s", 5)


def test_the_order_of_the_rows_does_not_matter():
    rows = trials(step(**MIDDLE), noise=0.03)
    assert fit(rows[::-1], WEAK_WORK).step_s(3) == pytest.approx(fit(rows, WEAK_WORK).step_s(3))


def test_without_a_jump_its_interval_is_empty():
    assert fit(trials(step(**MIDDLE), noise=0.01), WEAK_WORK).interval("jump_s", 1) == (0.0, 0.0)


def test_number_left_out_is_predicted_within_3_percent():
    """From 2 workers on: what one worker does alone, only one worker's trials can tell."""
    for seed in range(10):
        actual = fit(trials(step(**MIDDLE), noise=0.01, seed=seed), WEAK_WORK)
        assert max(abs(actual.held_out[n]) for n in (2, 3, 4, 5)) < 3


def test_a_number_can_be_left_out_of_four():
    actual = fit(trials(step(**MIDDLE), counts=(1, 2, 3, 4)), WEAK_WORK)
    assert actual.held_out == pytest.approx(dict.fromkeys((1, 2, 3, 4), 0.0), abs=1e-6)


def test_no_number_is_left_out_of_three():
    assert fit(trials(step(**MIDDLE), noise=0.01, counts=(1, 3, 5)), WEAK_WORK).held_out == {}


def test_a_slow_fourth_host_is_found():
    for seed in range(10):
        actual = fit(trials(step(**MIDDLE, slow=4, d=0.04), noise=0.01, seed=seed), WEAK_WORK)
        assert actual.jump_from == 4
        assert actual.jump_s == pytest.approx(0.04, rel=0.35)
        assert actual.step_s(4) == pytest.approx(step(**MIDDLE, slow=4, d=0.04)(4), rel=0.02)


def test_without_noise_a_slow_host_is_found_exactly():
    actual = fit(trials(step(**MIDDLE, slow=4, d=0.04)), WEAK_WORK)
    assert (actual.compute_s, actual.latency_s, actual.s_per_byte, actual.jump_s) == pytest.approx((0.08, 0.002, 8e-9, 0.04), rel=1e-6)
    assert actual.communication_share(4) == pytest.approx((6 * 0.002 + 1.5 * BYTES * 8e-9) / actual.step_s(4))


def test_slow_host_adds_its_share_in_strong_scaling():
    def seconds(n):
        return strong_step(0.4, 0.002, 8e-9)(n) + (0.2 / n if n >= 4 else 0)

    actual = fit(trials(seconds, work=STRONG_WORK), STRONG_WORK)
    assert (actual.jump_from, actual.jump_s) == (4, pytest.approx(0.2))
    assert actual.parts_s(5)[3] == pytest.approx(0.04)


@pytest.mark.parametrize("work", [WEAK_WORK, STRONG_WORK])
def test_constant_cost_of_working_together_is_communication(work):
    alone = step if work is WEAK_WORK else strong_step
    actual = fit(trials(lambda n: alone(0.08, b=1e-9)(n) + (0.05 if n > 1 else 0), work=work), work)
    assert (actual.jump_from, actual.jump_s, actual.s_per_byte) == (2, pytest.approx(0.05), pytest.approx(1e-9))
    assert actual.communication_share(5) == pytest.approx((0.05 + 1.6 * BYTES * 1e-9) / actual.step_s(5))


def test_slow_host_that_comes_last_is_found_unforeseen():
    """A slow host that comes last is found but not foreseen."""
    actual = fit(trials(step(**MIDDLE, slow=5, d=0.06)), WEAK_WORK)
    assert (actual.jump_from, actual.jump_s) == (5, pytest.approx(0.06))
    seconds = step(**MIDDLE)(5)
    assert actual.held_out == {2: pytest.approx(0, abs=1e-6), 3: pytest.approx(0, abs=1e-6), 4: pytest.approx(0, abs=1e-6)} | {
        1: pytest.approx(actual.held_out[1]),
        5: pytest.approx((seconds / (seconds + 0.06) - 1) * 100),
    }


def test_jump_needs_more_numbers_of_workers_than_parameters():
    rows = trials(step(**MIDDLE, slow=4, d=0.02), noise=0.01)
    assert fit(rows, WEAK_WORK).jump_from == 4
    assert fit([row for row in rows if row.workers != 2], WEAK_WORK).jump_from is None


@pytest.mark.parametrize(("workers", "factor"), [(3, 1.13), (4, 1.13), (4, 0.89)])
def test_number_off_curve_of_others_is_found(workers, factor):
    actual = fit(slowed(trials(step(**MIDDLE), noise=0.003), workers, factor), WEAK_WORK)
    assert actual.odd == (workers, pytest.approx(factor - 1, abs=0.015))


def test_noise_is_not_called_odd():
    """Of these sweeps, a number of workers lies more than 10% off by chance."""
    for seed in (16, 23, 63, 102, 107):
        assert fit(trials(step(**MIDDLE), noise=0.05, seed=seed), WEAK_WORK).odd is None


def test_one_worker_is_not_called_odd():
    rows = slowed(trials(step(0.3, 0.03, 1e-9), noise=0.003), 1, 1.2)
    assert fit(rows, WEAK_WORK).odd is None


def test_a_small_jump_is_left_to_the_curve():
    assert fit(trials(step(**MIDDLE, slow=4, d=0.007)), WEAK_WORK).jump_from is None
    assert fit(trials(step(**MIDDLE, slow=4, d=0.009)), WEAK_WORK).jump_from == 4


def test_without_one_worker_slowness_is_sought_from_three():
    """Without one worker a slow host is sought from the third number on. The second would look like the cost of bytes."""
    slow = [fit(trials(step(**MIDDLE, slow=first, d=0.05), counts=(2, 3, 4, 5, 6)), WEAK_WORK).jump_from for first in (3, 4)]
    assert slow == [None, 4]


def test_noise_is_not_taken_for_a_slow_host():
    actual = [fit(trials(step(**MIDDLE), noise=0.03, seed=seed), WEAK_WORK).jump_from for seed in range(25)]
    assert sum(jump is not None for jump in actual) <= 3


def test_failed_trials_are_left_out():
    rows = trials(step(**MIDDLE), noise=0.01)
    assert fit([*rows, lost(timing(6, 1, 1.0)), lost(timing(2, 4, 1.0))], WEAK_WORK) == fit(rows, WEAK_WORK)


def test_a_sweep_with_a_gap():
    actual = fit(trials(step(**MIDDLE), noise=0.01, counts=(1, 3, 5)), WEAK_WORK)
    assert actual.step_s(4) == pytest.approx(step(**MIDDLE)(4), rel=0.03)


def test_an_honest_noisy_lab_is_not_refused():
    for seed in range(20):
        assert fit(trials(step(**MIDDLE), noise=0.05, seed=seed), WEAK_WORK).step_s(5) == pytest.approx(step(**MIDDLE)(5), rel=0.12)


@pytest.mark.parametrize("seed", range(10))
def test_noise_alone_is_refused(seed):
    with pytest.raises(Refused, match=r"% wide \(limit: 30%\)\. The repeats of \d workers? lie \d+% apart\. Measure more often"):
        fit(noise_only(seed), WEAK_WORK)


def refusal(rows, work=WEAK_WORK, sweep="pi"):
    with pytest.raises(Refused) as caught:
        fit(rows, work, sweep=sweep)
    return str(caught.value)


def test_refused_for_noise_in_full():
    assert refusal(noise_only(0)) == (
        "images/s of 1 worker are 786 with a 95% interval from 455 to 1,400, 120% wide (limit: 30%). The repeats of 4 workers lie 170% "
        f"apart. Measure more often, with no other work on the hosts: {AGAIN} -e workers=1-5 -e repeats=10 -e epochs=3"
    )


@pytest.mark.parametrize(("repeats", "asked"), [(2, 4), (9, 11)])
def test_more_repeats_are_asked_for_than_there_are(repeats, asked):
    rows = trials(lambda n: 0.1, repeats=repeats)
    rows = [dataclasses.replace(row, images_per_s=row.images_per_s * (2.2 if row.repeat % 2 else 0.2)) for row in rows]
    assert f" -e repeats={max(asked, 10)} " in refusal(rows)


def test_refused_when_no_curve_meets_the_numbers():
    rows = slowed(trials(step(**MIDDLE), noise=0.005), 3, 1.4)
    message = refusal(rows)
    assert message.startswith("images/s of 1 worker are 8")
    assert message.endswith(
        "% wide (limit: 30%). The repeats agree within 1%, but no curve meets all numbers of workers: "
        "3 workers take 41% longer than the others suggest. "
        "See that the hosts are equally fast, free of other work and not parts of one machine (ansible-playbook doctor.yml), "
        "then measure anew: ansible-playbook sweep.yml -e sweep=pi-2 "
        "-e config=sweeps/pi/config.yml -e workers=1-5 -e repeats=3 -e epochs=3"
    )


def test_refused_when_every_gain_is_open():
    rows = trials(lambda n: 0.05 * n, noise=0.06, seed=3, counts=(1, 2, 3))
    assert refusal(rows) == (
        "no worker's gain in images/s is distinguishable from 0, nor from the 10% that is worth a worker: 2 workers [-11%, +14%], "
        "3 workers [-1%, +19%]. The repeats of 1 worker lie 27% apart. Measure more often, with no other work on the hosts: "
        f"{AGAIN} -e workers=1-3 -e repeats=5 -e epochs=3"
    )


def test_refused_without_any_trial():
    failed = [lost(row) for row in trials(strong_step(0.1), work=STRONG_WORK)]
    assert refusal(failed, STRONG_WORK) == (
        f"no trial succeeded; the model of a step needs 3 different numbers of workers. {AGAIN} -e repeats=3 -e epochs=3 -e scaling=strong"
    )


@pytest.mark.parametrize(("counts", "named", "asked"), [((4,), "4", "1-4"), ((1, 2), "1 and 2", "1-3"), ((2, 7), "2 and 7", "1-7")])
def test_refused_with_too_few_numbers(counts, named, asked):
    assert refusal(trials(step(0.1), counts=counts)) == (
        f"only {named} workers were measured; the model of a step has 3 parameters and needs at least as many different numbers "
        f"of workers. Measure: {AGAIN} -e workers={asked} -e repeats=3 -e epochs=3"
    )


def test_refused_with_too_few_repeats():
    rows = [row for row in trials(step(**MIDDLE)) if row.repeat == 1 or row.workers > 3]
    assert refusal(rows) == (
        "3 of 5 numbers of workers were measured only once (1, 2 and 3); without at least 2 repeats of most, noise and "
        f"scaling look the same. Measure: {AGAIN} -e workers=1-5 -e repeats=3 -e epochs=3"
    )
    assert fit([*rows, timing(3, 2, 192 / step(**MIDDLE)(3))], WEAK_WORK).step_s(3) == pytest.approx(step(**MIDDLE)(3))


def test_the_command_that_measures_more():
    rows = [dataclasses.replace(row, checkpoint_every=50) for row in trials(step(0.1), counts=(2, 3, 4))]
    assert fitting.again(rows, "pi", 5) == f"{AGAIN} -e workers=2-4 -e repeats=5 -e epochs=3 -e checkpoint_every=50"
    strong = trials(strong_step(0.1), counts=(1, 4), work=STRONG_WORK)
    assert fitting.again([*strong, lost(timing(6, 1, 1.0, "strong"))], "pi", 4) == (
        f"{AGAIN} -e workers=1,4,6 -e repeats=4 -e epochs=3 -e scaling=strong"
    )


# --- own work, from profiled steps


@pytest.mark.parametrize("counts", [(1, 2, 3, 4, 5), (2, 3, 4, 5), (3, 4, 5)])
def test_agreeing_own_work_changes_only_what_is_known(counts):
    """Own work that agrees changes nothing but what is known."""
    actual = fit(trials(step(**MIDDLE), counts=counts), WEAK_WORK, own=own_work(0.08, counts))
    assert (actual.compute_s, actual.latency_s, actual.s_per_byte) == pytest.approx((0.08, 0.002, 8e-9), rel=1e-6)
    assert actual.own == own_work(0.08, counts)


def test_strong_own_work_is_shared():
    own = {n: 0.4 / n for n in (2, 3, 4, 5)}
    actual = fit(trials(strong_step(0.4, 0.002, 8e-9), counts=(2, 3, 4, 5), work=STRONG_WORK), STRONG_WORK, own=own)
    assert (actual.compute_s, actual.latency_s, actual.s_per_byte) == pytest.approx((0.4, 0.002, 8e-9), rel=1e-6)


def test_own_work_predicts_one_worker_from_others():
    """With own work one worker is predicted from the others. On a slow link, where a guess is far off."""
    slow = {"c": 0.08, "a": 0.002, "b": 3e-8}
    for seed in range(10):
        rows = trials(step(**slow), noise=0.02, seed=seed)
        assert abs(fit(rows, WEAK_WORK, own=own_work(0.08)).held_out[1]) < 4
    guessed = [abs(fit(trials(step(**slow), noise=0.02, seed=seed), WEAK_WORK).held_out[1]) for seed in range(10)]
    assert max(guessed) > 20


def test_number_is_held_out_with_its_own_work():
    """Own work of 2 workers that is wrong misleads all predictions but that of 2 workers."""
    rows = trials(step(**MIDDLE))
    actual = fit(rows, WEAK_WORK, own=own_work(0.08) | {2: 0.1}).held_out
    assert actual[2] == pytest.approx(0, abs=1e-6)
    assert abs(actual[1]) > 0.5


def test_own_work_of_unmeasured_numbers_is_left_out():
    rows = [*trials(step(**MIDDLE), noise=0.01), lost(timing(6, 1, 1.0))]
    assert fit(rows, WEAK_WORK, own={6: 9.0, 7: 9.0}) == fit(rows, WEAK_WORK)


def test_own_work_weighs_as_much_as_its_repeats():
    """Two workers, three times 0.1 s, own work of 0.08 s: c follows it, and the rest is the network."""
    actual = fitting._Data(WEAK_WORK, {2: [0.1] * 3}, {2: 0.08})
    assert actual.weights() == pytest.approx([3**0.5])
    values = actual.solve(None)
    assert values[0] == pytest.approx(0.08)
    assert WEAK_WORK.terms(2) @ values == pytest.approx(0.1)


def test_cost_of_profiling_shows_at_one_worker():
    """What profiling adds is seen where one worker only works.

    A profiled step of 0.088 s takes 0.08 s unprofiled: a tenth of every observation is profiling.
    """
    profiled = {n: 1.1 * seconds for n, seconds in own_work(0.08).items()}
    actual = fit(trials(step(**MIDDLE)), WEAK_WORK, own=profiled)
    assert (actual.compute_s, actual.latency_s, actual.s_per_byte) == pytest.approx((0.08, 0.002, 8e-9), rel=1e-3)
    assert fitting._Data(WEAK_WORK, {2: [0.2]}, {2: 0.088}).observed == {2: 0.088}


def test_own_work_shows_a_slow_host_by_itself():
    """Own work shows a slow host without trials of one worker."""
    counts = (2, 3, 4, 5, 6)
    rows = trials(step(**MIDDLE, slow=3, d=0.05), counts=counts)
    actual = fit(rows, WEAK_WORK, own=own_work(0.08, counts, slow=3, d=0.05))
    assert (actual.jump_from, actual.jump_s, actual.compute_s) == (3, pytest.approx(0.05), pytest.approx(0.08))


def test_what_working_together_costs_is_no_own_work():
    rows = trials(lambda n: 0.08 + (0.05 if n > 1 else 0))
    actual = fit(rows, WEAK_WORK, own=own_work(0.08))
    assert (actual.jump_from, actual.jump_s, actual.compute_s) == (2, pytest.approx(0.05), pytest.approx(0.08))


def test_intervals_of_own_work_follow_their_errors():
    """Intervals with own work hold the truth and follow its errors.

    Own work is drawn anew as well: c would else seem to be known exactly.
    """
    seconds = step(**MIDDLE)
    truth = {"images_per_s": 256 / seconds(4), "compute_s": 0.08, "latency_s": 0.002, "s_per_byte": 8e-9}
    actual = []
    for seed in range(40):
        generator = np.random.default_rng(1000 + seed)
        own = {n: 0.08 * float(np.exp(0.03 * generator.standard_normal() / 3**0.5)) for n in (2, 3, 4, 5)}
        actual.append(fit(trials(seconds, noise=0.03, seed=seed, counts=(2, 3, 4, 5)), WEAK_WORK, own=own))
    for name, true in truth.items():
        held = [low <= true <= high for low, high in (one.interval(name, 4) for one in actual)]
        assert sum(held) >= 34, name
    assert 0.02 < max(width(one.interval("compute_s", 4)) for one in actual) / 0.08 < 0.15


def test_own_work_that_contradicts_itself_widens_the_intervals():
    rows = trials(step(**MIDDLE), noise=0.01)
    agreed, apart = (fit(rows, WEAK_WORK, own=own) for own in (own_work(0.08), {1: 0.08, 2: 0.075, 3: 0.085, 4: 0.07, 5: 0.09}))
    assert width(apart.interval("compute_s", 1)) > 1.5 * width(agreed.interval("compute_s", 1))


def test_workers_that_share_a_machine_are_refused():
    """A step's own work grows with the workers there: no communication, and not in the model."""
    own = {n: 0.1 * n for n in COUNTS}
    rows = trials(lambda n: 0.1 * n + 0.01 * (n - 1), noise=0.005)
    with pytest.raises(Refused) as caught:
        fit(rows, WEAK_WORK, sweep="pi", own=own)
    assert "; own work for a step grows from 0.1 s with 1 to 0.5 s with 5 workers. See that the hosts are equally fast, " in str(
        caught.value
    )
    shared = trials(lambda n: 0.4 + 0.01 * (n - 1), noise=0.005, work=STRONG_WORK)
    with pytest.raises(Refused) as caught:
        fit(shared, STRONG_WORK, sweep="pi", own=dict.fromkeys(COUNTS, 0.4))
    assert "; own work for the same images grows from 0.4 s with 1 to 2 s with 5 workers. See that " in str(caught.value)


def test_quick_newcomers_mean_no_slow_host():
    """No slow host is told of where those that joined are known to be quick."""
    rows = trials(step(**MIDDLE, slow=4, d=0.04))
    assert fit(rows, WEAK_WORK).jump_from == 4
    assert fit(rows, WEAK_WORK, quick=(3, 4, 5)).jump_from is None
    assert fit(rows, WEAK_WORK, quick=(3, 5)).jump_from == 4


# --- compression

COMPRESSED = dataclasses.replace(WEAK_WORK, gradient_bytes=127_528, transport="direct", sums=(43_008, 84_536), compressed=True)


def compressed_step(c, k, a=0.0, b=0.0):
    """Seconds of a weak step; from 2 workers on with compression."""

    def seconds(n):
        sent = COMPRESSED.sent(n)
        return c + (k if n > 1 else 0.0) + a * sent.messages + b * sent.bytes

    return seconds


def own_compressing(c, k):
    return {n: c + (k if n > 1 else 0.0) for n in COUNTS}


def test_compression_is_told_from_work_and_network():
    actual = fit(trials(compressed_step(0.08, 0.02, 1e-4, 8e-8), work=COMPRESSED), COMPRESSED, own=own_compressing(0.08, 0.02))
    assert (actual.compute_s, actual.compression_s) == pytest.approx((0.08, 0.02), rel=1e-3)
    assert (actual.latency_s, actual.s_per_byte) == pytest.approx((1e-4, 8e-8), rel=0.02)
    assert actual.jump_from is None, "compression is no jump"
    assert actual.parts_s(1)[4] == 0.0
    assert actual.parts_s(5)[4] == pytest.approx(0.02, rel=1e-3)
    assert actual.own_s(5) == pytest.approx(0.1, rel=1e-3)
    assert actual.communication_share(5) == pytest.approx(1 - 0.08 / actual.step_s(5), rel=1e-3)


def test_held_out_workers_are_predicted_with_compression():
    rows = trials(compressed_step(0.08, 0.02, 1e-4, 8e-8), work=COMPRESSED, noise=0.01)
    actual = fit(rows, COMPRESSED, own=own_compressing(0.08, 0.02))
    assert {n for n, error in actual.held_out.items() if abs(error) > 3} <= {1}
    # Own work of one worker can't be seen while compression is part of all that was measured.
    assert actual.held_out[1] == pytest.approx(25, abs=5)


def test_held_out_number_keeps_own_work_timed_apart():
    """Own work that was timed apart stays known of a number that is held out."""
    rows = trials(compressed_step(0.08, 0.02, 1e-4, 8e-8), work=COMPRESSED, noise=0.01)
    actual = fit(rows, COMPRESSED, own=own_compressing(0.08, 0.02), timed=True)
    assert max(map(abs, actual.held_out.values())) < 3
    assert actual.timed


def test_timed_own_work_is_not_corrected_for_profiling():
    assert fitting._Data(WEAK_WORK, {1: [0.1]}, {1: 0.08, 2: 0.09}, timed=True).observed == {1: 0.08, 2: 0.09}


@pytest.mark.parametrize("own", [None, {2: 0.1, 3: 0.1}, {1: 0.08}])
def test_compression_needs_own_work_of_one_and_several(own):
    """Without own work of one and of several workers compression is not told."""
    actual = fit(trials(compressed_step(0.08, 0.0), work=COMPRESSED), COMPRESSED, own=own)
    assert actual.compression_s == 0.0


def test_own_work_of_compression_does_not_grow():
    actual = fit(trials(compressed_step(0.08, 0.02), work=COMPRESSED), COMPRESSED, own=own_compressing(0.08, 0.02))
    assert fitting._own_grows(actual) == ""
