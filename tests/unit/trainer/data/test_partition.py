"""The exact partition: every image once an epoch, a pure function of seed, epoch, step and worker."""

import numpy as np
import pytest

from control.datasets.listing.stratified import stratified_order
from trainer.data.partition import EpochPlan, epoch_order, part_bounds


def make(images, batch, seed=7, epoch=1, steps=None):
    return EpochPlan(images, batch, -(-images // batch) if steps is None else steps, seed, epoch)


@pytest.mark.parametrize(("images", "batch"), [(96, 12), (100, 12), (101, 10), (7, 64), (5, 5), (64, 63), (1000, 7)])
def test_every_image_exactly_once_an_epoch(images, batch):
    plan = make(images, batch)
    unions = [plan.union(step) for step in range(plan.steps)]
    assert sorted(np.concatenate(unions)) == list(range(images))
    assert {len(union) for union in unions[:-1]} <= {batch}, "the last has what is left"


@pytest.mark.parametrize("shares", [[1], [1] * 2, [1] * 5, [3, 1, 2], [64, 16, 64]])
@pytest.mark.parametrize("batch", [0, 1, 4, 5, 64, 144])
def test_parts_of_a_batch_lie_end_to_end(batch, shares):
    bounds = [part_bounds(batch, shares, rank) for rank in range(len(shares))]
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == batch
    assert all(abs(stop - start - batch * one / sum(shares)) < 1 for (start, stop), one in zip(bounds, shares, strict=True))


def test_a_resumed_epoch_takes_up_where_it_stopped():
    whole, resumed = make(100, 12, steps=30), make(100, 12, steps=30)
    expected = [whole.union(step).tolist() for step in range(30)]
    assert [resumed.union(step).tolist() for step in range(17, 30)] == expected[17:]
    assert resumed.union(3).tolist() == expected[3]


@pytest.mark.parametrize("other", [{"epoch": 2}, {"seed": 8}])
def test_order_differs_between_epochs_and_seeds(other):
    assert make(100, 100).union(0).tolist() != make(100, 100, **other).union(0).tolist()


def test_laps_of_an_epoch_differ():
    assert epoch_order(100, 7, 1, 0).tolist() != epoch_order(100, 7, 1, 1).tolist()


def test_largest_seed_works():
    assert sorted(epoch_order(10, 2**63 - 1, 1000)) == list(range(10))


@pytest.mark.parametrize(("images", "batch", "steps"), [(10, 4, 7), (10, 5, 4), (3, 8, 5), (100, 7, 60), (100, 8, 5)])
def test_long_epoch_goes_on_with_another_lap(images, batch, steps):
    """An epoch longer than one pass goes on with the next lap, and neither repeats anything before."""
    plan = make(images, batch, steps=steps)
    unions = [plan.union(step) for step in range(steps)]
    assert {len(union) for union in unions} == {batch}
    seen = np.concatenate(unions)
    for lap in range(len(seen) // images):
        assert sorted(seen[lap * images : (lap + 1) * images]) == list(range(images))
    rest = seen[len(seen) // images * images :]
    assert len(set(rest.tolist())) == len(rest)


@pytest.mark.parametrize("sizes", [(50, 50), (80, 20), (10, 20, 70), (1, 99), (33, 33, 34)])
def test_stratified_prefixes_have_classes_in_proportion(sizes):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    order = stratified_order(labels, 0)
    assert sorted(order) == list(range(len(labels)))
    for length in range(len(labels) + 1):
        actual = np.bincount(labels[order[:length]], minlength=len(sizes))
        assert np.abs(actual - np.array(sizes) * length / len(labels)).max() <= 1


def test_stratified_order_is_random_within_class_and_repeatable():
    labels = np.repeat([0, 1], 50)
    first = stratified_order(labels, 0)
    assert first.tolist() == stratified_order(labels, 0).tolist()
    assert first.tolist() != stratified_order(labels, 1).tolist()
    zeros = first[labels[first] == 0].tolist()
    assert zeros != sorted(zeros)


@pytest.mark.parametrize(("examples", "batch", "pool"), [(96, 12, 4), (101, 10, 3), (7, 64, 5), (1000, 7, 50), (30, 10, 1)])
def test_buckets_show_every_example_once_and_less_padding(examples, batch, pool):
    lengths = np.random.default_rng(0).integers(1, 100, examples)

    def padded(plan):
        unions = [plan.union(step) for step in range(plan.steps)]
        assert sorted(np.concatenate(unions)) == list(range(examples))
        return sum(lengths[union].max() * len(union) for union in unions)

    steps = -(-examples // batch)
    plain, pooled = make(examples, batch), EpochPlan(examples, batch, steps, 7, 1, lengths, pool)
    assert padded(pooled) <= padded(plain)
    assert padded(pooled) < 0.85 * padded(plain) or examples < 2 * batch or pool == 1
    again = EpochPlan(examples, batch, steps, 7, 1, lengths, pool)
    assert [again.union(step).tolist() for step in range(steps)] == [pooled.union(step).tolist() for step in range(steps)]


def test_buckets_differ_between_epochs_and_spread_lengths():
    """Buckets differ between epochs and give no worker the longest."""
    lengths = np.arange(1000)
    first, second = (EpochPlan(1000, 100, 10, 7, epoch, lengths, 10) for epoch in (1, 2))
    assert first.union(0).tolist() != second.union(0).tolist()
    longest = [np.argmax(lengths[first.union(step)]) for step in range(10)]
    assert max(longest) - min(longest) > 50
    assert first.union(3).max() - first.union(3).min() == 99


def test_partners_differ_between_steps_not_launches():
    plan, again = make(101, 10), make(101, 10)
    assert [sorted(plan.partners(step)) for step in (0, 10)] == [list(range(10)), [0]]
    assert plan.partners(3).tolist() == again.partners(3).tolist() != plan.partners(4).tolist()
    assert plan.partners(0).tolist() != make(101, 10, epoch=2).partners(0).tolist()


def test_seeds_follow_from_image_and_epoch():
    """Seeds follow from the image and the epoch and differ when it comes again."""
    plan = make(5, 4, steps=5)
    pairs = {tuple(pair) for step in range(5) for pair in plan.seeds(step, np.arange(4)).tolist()}
    assert len(pairs) == 20
    images = {(image, lap) for step in range(5) for image, lap in zip(plan.union(step), (step * 4 + np.arange(4)) // 5, strict=True)}
    assert {second for _, second in pairs} == {lap * 5 + image for image, lap in images}
    assert plan.seeds(2, np.arange(4))[1:3].tolist() == make(5, 4, steps=5).seeds(2, np.arange(1, 3)).tolist()
    others = make(5, 4, steps=5, epoch=2), make(5, 4, steps=5, seed=8)
    assert len({other.seeds(0, np.arange(1))[0, 0] for other in (plan, *others)}) == 3
