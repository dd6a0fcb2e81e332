"""Cutting an epoch into calls, and the batches that a worker feeds to them."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.unit.trainer.data.test_columns import opened
from trainer.config import loading
from trainer.data import feeder
from trainer.data.batch import Call
from trainer.data.feeder import Feeder, calls
from trainer.data.partition import EpochPlan, part_bounds
from trainer.data.spec import Leaf, Spec, of_images
from trainer.data.transform import Feeding


def cut(*arguments, **named):
    return [(call.first, call.first + call.steps) for call in calls(*arguments, **named)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0, 0, 4, False), []),
        ((0, 8, 4, False), [(0, 4), (4, 8)]),
        ((0, 10, 4, False), [(0, 4), (4, 8), (8, 10)]),
        ((0, 10, 4, True), [(0, 4), (4, 8), (8, 9), (9, 10)]),
        ((0, 9, 4, True), [(0, 4), (4, 8), (8, 9)]),
        ((0, 1, 4, True), [(0, 1)]),
        ((9, 10, 4, True), [(9, 10)]),
        ((3, 10, 4, False), [(3, 7), (7, 10)]),
        ((0, 10, 4, False, 3), [(0, 3), (3, 6), (6, 9), (9, 10)]),
        ((0, 10, 4, False, 4, 6), [(0, 2), (2, 6), (6, 10)]),
        ((0, 6, 8, True, 4, 6), [(0, 2), (2, 5), (5, 6)]),
        ((0, 10, 4, False, 100), [(0, 4), (4, 8), (8, 10)]),
    ],
)
def test_calls(arguments, expected):
    assert cut(*arguments) == expected


@pytest.mark.parametrize("uneven", [True, False])
@pytest.mark.parametrize("most", [1, 3, 8])
@pytest.mark.parametrize(("boundary", "offset"), [(None, 0), (1, 0), (5, 0), (5, 23), (7, 14)])
def test_calls_cover_all_steps_and_cross_nothing(boundary, offset, most, uneven):
    actual = cut(4, 23, most, uneven, boundary, offset)
    assert [step for first, stop in actual for step in range(first, stop)] == list(range(4, 23))
    assert all(1 <= stop - first <= most for first, stop in actual)
    if uneven:
        assert actual[-1] == (22, 23)
    if boundary:
        assert all((offset + first) // boundary == (offset + stop - 1) // boundary for first, stop in actual)


def apart(*arguments, **named):
    return [(call.first, call.first + call.steps, call.taken_apart) for call in calls(*arguments, **named)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0, 4, 4, False, None, 0, 0), [(0, 4, False)]),
        ((0, 10, 4, False, None, 0, 5), [(0, 4, False), (4, 5, True), (5, 9, False), (9, 10, True)]),
        ((0, 3, 4, False, None, 0, 1), [(0, 1, True), (1, 2, True), (2, 3, True)]),
        ((0, 4, 4, False, None, 8, 5), [(0, 1, False), (1, 2, True), (2, 4, False)]),
        ((0, 6, 4, True, None, 0, 6), [(0, 4, False), (4, 5, False), (5, 6, True)]),
        ((0, 8, 8, False, 3, 0, 4), [(0, 3, False), (3, 4, True), (4, 6, False), (6, 7, False), (7, 8, True)]),
        ((4, 6, 4, False, None, 0, 5), [(4, 5, True), (5, 6, False)]),
        ((0, 9, 4, False, None, 0, 100), [(0, 4, False), (4, 8, False), (8, 9, False)]),
    ],
)
def test_step_taken_apart_is_call_of_its_own(arguments, expected):
    assert apart(*arguments) == expected


@pytest.mark.parametrize("every", [1, 3, 7, 50])
@pytest.mark.parametrize("boundary", [None, 4])
@pytest.mark.parametrize("offset", [0, 23])
def test_step_number_alone_decides_what_is_taken_apart(every, boundary, offset):
    for first in range(23):
        actual = apart(first, 23, 8, True, boundary, offset, every)
        assert [step for start, stop, _ in actual for step in range(start, stop)] == list(range(first, 23))
        numbers = [offset + start + 1 for start, stop, taken_apart in actual if taken_apart and stop == start + 1]
        assert numbers == [number for number in range(offset + first + 1, offset + 24) if number % every == 0]
        assert len(numbers) == sum(taken_apart for *_, taken_apart in actual)


class InMemory:
    """Image i is filled with the number i and has the label i % 3."""

    def __init__(self, count):
        self.labels = (np.arange(count) % 3).astype(np.int32)

    def gather(self, indices):
        images = np.broadcast_to(indices.astype(np.uint8)[:, None, None, None], (len(indices), 2, 2, 1))
        return images, self.labels[indices]


def part(plan, step, workers, rank):
    return plan.union(step)[slice(*part_bounds(plan.size(step), [1] * workers, rank))]


@pytest.mark.parametrize(("workers", "rank"), [(1, 0), (2, 0), (2, 1), (3, 2)])
def test_feeder_yields_workers_images_and_labels_in_order(workers, rank):
    chosen = np.array([30, 2, 17, 8, 21, 5, 11, 29, 3, 14])
    plan = EpochPlan(10, 6, 2, seed=1, epoch=1)
    fed = list(Feeder(InMemory(31), chosen, [1] * workers, rank).epoch(plan, calls(0, 2, 8, uneven=True)))
    assert [call for call, _ in fed] == [Call(0, 1), Call(1, 1)]
    for step, (_, batches) in enumerate(fed):
        indices = chosen[part(plan, step, workers, rank)]
        assert chosen[plan.union(step)][batches.places[0]].tolist() == indices.tolist()
        assert batches.data[0].shape == (1, len(indices), 2, 2, 1)
        assert batches.data[0][0, :, 0, 0, 0].tolist() == indices.tolist()
        assert batches.data[1].tolist() == [(indices % 3).tolist()]
        assert batches.weights.tolist() == [[1.0] * len(indices)]
        assert (batches.data[0].dtype, batches.data[1].dtype, batches.weights.dtype) == (np.uint8, np.int32, np.float32)


def test_feeder_stacks_the_steps_of_a_call():
    plan = EpochPlan(12, 4, 3, seed=1, epoch=2)
    ((_, batches),) = Feeder(InMemory(12), np.arange(12), [1] * 2, 1).epoch(plan, calls(0, 3, 8, uneven=False))
    assert batches.data[0].shape == (3, 2, 2, 2, 1)
    assert (batches.number.tolist(), batches.number.dtype) == ([3, 4, 5], np.int32)
    assert batches.data[0][..., 0, 0, 0].tolist() == [part(plan, step, 2, 1).tolist() for step in range(3)]


def test_empty_share_is_stand_in_with_weight_zero():
    plan = EpochPlan(7, 6, 2, seed=1, epoch=1)
    fed = {rank: list(Feeder(InMemory(7), np.arange(7), [1] * 3, rank).epoch(plan, calls(0, 2, 8, uneven=True)))[1] for rank in range(3)}
    assert [batch.weights.tolist() for _, batch in fed.values()] == [[[0.0]], [[0.0]], [[1.0]]]
    assert [batch.data[0].shape for _, batch in fed.values()] == [(1, 1, 2, 2, 1)] * 3
    assert fed[2][1].data[0][0, 0, 0, 0, 0] == plan.union(1)[0]


class Broken(InMemory):
    """The disk goes away when image 9 is read."""

    def gather(self, indices):
        if 9 in indices:
            raise OSError("disk gone")
        return super().gather(indices)


def test_an_exception_in_gather_reaches_the_caller():
    plan = EpochPlan(10, 2, 5, seed=1, epoch=1)
    feed = Feeder(Broken(10), np.arange(10), [1] * 1, 0).epoch(plan, calls(0, 5, 1, uneven=False))
    before = next(step for step in range(5) if 9 in plan.union(step))
    assert [next(feed)[0].first for _ in range(before)] == list(range(before))
    with pytest.raises(OSError, match="disk gone"):
        next(feed)


def test_items_under_way_are_bounded_and_ordered():
    """No more items are under way than may be and their order is kept."""
    begun, most = [], []
    with ThreadPoolExecutor(2) as pool:
        for item, made in enumerate(feeder.in_order(pool, lambda item: begun.append(item) or -item, range(20), 3)):
            assert made == -item
            most.append(max(begun) - item)
    assert sorted(begun) == list(range(20))
    assert max(most) <= 3


@pytest.mark.parametrize("workers", [1, 3])
def test_mixup_partners_are_of_the_whole_batch(workers):
    config = loading.build({"augment": {"mixup": 0.2}, "train": {"class_weight": {"1": 3.0}}})
    plan, pairs = EpochPlan(10, 6, 2, seed=1, epoch=1), []
    for rank in range(workers):
        feeding = Feeding(config, ["a", "b", "c"], of_images((2, 2, 1)))
        for _, batch in Feeder(InMemory(10), np.arange(10), [1] * workers, rank, feeding).epoch(plan, calls(0, 2, 8, uneven=True)):
            (image, partner), labels, weights = batch.data
            both = [one[0, :, 0, 0, 0].tolist() for one in (image, partner)]
            assert [label.tolist() for label in labels] == [[[number % 3 for number in one]] for one in both]
            assert [weight.tolist() for weight in weights] == [[[3.0 if number % 3 == 1 else 1.0 for number in one]] for one in both]
            pairs += [(int(batch.number[0]), *pair) for pair in zip(*both, strict=True)]
    unions = [plan.union(step) for step in range(2)]
    wanted = [(step, *pair) for step, union in enumerate(unions) for pair in zip(union, union[plan.partners(step)], strict=True)]
    assert sorted(pairs) == sorted(wanted)


WORDS = Spec([0, 1], (Leaf("x", "int32", (None,)), Leaf("y", "int32", ())))


def words(count, first=0):
    return [[np.full(1 + number * 5 % 7, number) for number in range(first, first + count)], np.arange(first, first + count) % 2]


def lengths_fed(examples, workers, most, bucket=1, first=0):
    """What each step is padded to by every worker: to the longest of the whole batch, whatever the calls."""
    config, actual = loading.build({"data": {"bucket": bucket}}), {}
    for rank in range(workers):
        feeding, chosen = Feeding(config, [], WORDS), np.arange(len(examples))
        plan = EpochPlan(len(examples), 3, 3, 1, 1, feeding.lengths(examples, chosen), bucket)
        for call, batch in Feeder(examples, chosen, [1] * workers, rank, feeding).epoch(plan, calls(first, 3, most, uneven=True)):
            assert batch.data[0].shape[2] == batch.sides.max()
            for number, (side,) in enumerate(batch.sides):
                union = plan.union(call.first + number)
                assert side == max(1 + row * 5 % 7 for row in union)
                actual.setdefault(call.first + number, set()).add((int(side), tuple(union)))
    return actual


@pytest.mark.parametrize("bucket", [1, 2])
def test_padding_depends_on_neither_workers_nor_calls(bucket, tmp_path):
    examples = opened(tmp_path, spec=WORDS, values=words, batches=((8, 0),))
    whole = lengths_fed(examples, 1, 8, bucket)
    assert [len(sides) for sides in whole.values()] == [1, 1, 1]
    assert lengths_fed(examples, 2, 1, bucket) == whole
    assert lengths_fed(examples, 2, 2, bucket, first=1) == {step: sides for step, sides in whole.items() if step >= 1}
    if bucket > 1:
        plain = lengths_fed(examples, 1, 8)
        padded = [sum(side * len(union) for sides in made.values() for side, union in sides) for made in (whole, plain)]
        assert padded[0] < padded[1]
