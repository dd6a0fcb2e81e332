"""What the network should cost: known answers."""

import pytest

from control.doctor import prediction
from trainer.errors import LockstepError


def test_bytes_of_a_step():
    assert prediction.bytes_per_step(3_700_000) == 14_800_000


@pytest.mark.parametrize(("workers", "share"), [(1, 0.0), (2, 1.0), (4, 1.5), (5, 1.6), (100, 1.98)])
def test_a_ring_moves_two_shares_of_all_but_one(workers, share):
    assert prediction.wire_bytes(workers, 1000) == pytest.approx(share * 1000)


def test_wire_seconds():
    # 10 MB over 5 hosts: 16 MB a host, 128 Mbit, at 1,000 Mbit/s.
    assert prediction.wire_seconds(5, 10_000_000, 1000.0) == pytest.approx(0.128)
    assert prediction.wire_seconds(1, 10_000_000, 1000.0) == 0.0


def test_a_step_is_the_slowest_host_the_wire_and_the_delay():
    one = prediction.step([0.5, 0.8, 0.5, 0.5, 0.5], 128, 10_000_000, 1000.0, 1.0)
    assert (one.workers, one.compute_s) == (5, 0.8)
    assert one.step_s == pytest.approx(0.8 + 0.128 + 0.004)
    assert one.images_per_s == pytest.approx(640 / 0.932)
    assert one.efficiency == pytest.approx((640 / 0.932) / (4 * 256 + 160))


def test_one_host_needs_no_network():
    one = prediction.step([0.5], 128, 10_000_000, None, None)
    assert (one.step_s, one.images_per_s, one.efficiency) == (0.5, 256.0, 1.0)


def test_several_hosts_without_a_bandwidth():
    with pytest.raises(LockstepError, match=r"^no prediction: no bandwidth was measured between the 2 hosts; run the doctor again$"):
        prediction.step([0.5, 0.5], 128, 10_000_000, None, 0.1)


HOSTS = ["a", "b", "c"]
NETWORK = {
    "a": {"pairs": {"b": {"mbit_s": 900.0, "rtt_ms": 0.2}, "c": {"mbit_s": 800.0, "rtt_ms": 0.3}}, "ring": {"to": "b", "mbit_s": 700.0}},
    "b": {"pairs": {"a": {"mbit_s": 910.0, "rtt_ms": 0.2}, "c": {"mbit_s": 850.0, "rtt_ms": 0.4}}, "ring": {"to": "c", "mbit_s": 500.0}},
    "c": {"pairs": {"a": {"mbit_s": 950.0, "rtt_ms": 0.9}, "b": {"mbit_s": 100.0, "rtt_ms": 9.9}}, "ring": {"to": "a", "mbit_s": 600.0}},
}


def test_only_links_of_the_ring_count():
    assert prediction.ring(HOSTS) == [("a", "b"), ("b", "c"), ("c", "a")]
    assert prediction.slowest(HOSTS, NETWORK) == 500.0
    assert prediction.slowest(["a", "b"], NETWORK) == 700.0
    assert prediction.slowest(["a"], NETWORK) is None
    assert prediction.longest(HOSTS, NETWORK) == 0.9
    assert prediction.longest(["a"], NETWORK) is None


def test_curve_takes_hosts_in_order_and_the_usual_step_for_unmeasured_ones():
    found = prediction.curve(HOSTS, {"a": 0.4, "b": 0.6}, 100, 1_000_000, NETWORK)
    assert [one.workers for one in found] == [1, 2, 3]
    assert [one.compute_s for one in found] == [0.4, 0.6, 0.6]
    assert found[0].images_per_s == 250.0
    # Two: 1 MB a host at 700 Mbit/s, 2 messages of 0.1 ms. Three: 4/3 MB at 500 Mbit/s, 4 of 0.45 ms.
    assert found[1].step_s == pytest.approx(0.6 + 8 / 700 + 0.0002)
    assert found[2].step_s == pytest.approx(0.6 + 8 * 4 / 3 / 500 + 0.0018)


def test_what_a_measured_step_took_longer_is_tensorflows_own_share_of_every_byte():
    bare = prediction.curve(HOSTS, dict.fromkeys(HOSTS, 0.5), 100, 3_000_000, NETWORK)
    share = prediction.handling(bare[2].step_s + 0.4, bare[2], 3_000_000)
    assert share == pytest.approx(0.4 / 4_000_000)
    found = prediction.curve(HOSTS, dict.fromkeys(HOSTS, 0.5), 100, 3_000_000, NETWORK, share)
    assert [one.handling_s for one in found] == pytest.approx([0.0, 0.3, 0.4])
    assert found[2].step_s == pytest.approx(bare[2].step_s + 0.4)
    assert found[2].images_per_s == pytest.approx(300 / found[2].step_s)
    assert prediction.handling(bare[2].step_s - 0.1, bare[2], 3_000_000) == 0.0
    assert prediction.handling(9.0, bare[0], 3_000_000) == 0.0


def test_table():
    found = [prediction.step([0.5] * workers, 128, 10_000_000, 1000.0, 1.0, 1e-9) for workers in (1, 5)]
    assert prediction.table(found).splitlines() == [
        "  workers  compute ms  wire ms  delay ms  handling ms  step ms  images/s  of ideal",
        "        1       500.0      0.0       0.0          0.0    500.0       256      100%",
        "        5       500.0    128.0       4.0         16.0    648.0       988       77%",
    ]


@pytest.mark.parametrize(
    ("predicted", "measured", "sentence"),
    [
        (1013, 980, "1,013 images/s by the doctor, measured 980: 3% too high"),
        (900, 1000, "900 images/s by the doctor, measured 1,000: 10% too low"),
        (1002, 1000, "1,002 images/s by the doctor, measured 1,000: correct within 1%"),
        (0, 1000, "0 images/s by the doctor, measured 1,000: 100% too low"),
        (900, 0, "900 images/s by the doctor, measured 0"),
        (0, 0, "0 images/s by the doctor, measured 0"),
    ],
)
def test_sentence(predicted, measured, sentence):
    assert prediction.sentence(predicted, measured) == sentence


CONFIG = {"model": {"name": "task_cnn"}, "data": {"image_size": [32, 32, 3]}, "reduction": {"name": "auto"}}
COUNTS = {"global_batch": 192, "workers": 3}
PLACES = [{"name": name, "address": f"10.0.0.{number}"} for number, name in enumerate(HOSTS)]


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """A prediction for three hosts, with 64 images each."""
    monkeypatch.setattr(prediction, "FOLDER", tmp_path)
    plan = {"config": CONFIG, "hosts": PLACES, "counts": COUNTS}
    predictions = prediction.curve(HOSTS, dict.fromkeys(HOSTS, 0.5), 64, 1_000_000, NETWORK)
    prediction.save(plan, predictions, {name: {"cpus": 0.38} for name in HOSTS}, dict.fromkeys(HOSTS, 1))
    return predictions


def record(workers=3, **changed):
    """cluster.json of a run on the first hosts, with facts of the last one changed."""
    hosts = [{**place, "threads": 1, "cpus": 0.38} for place in PLACES[:workers]]
    return {"hosts": [*hosts[:-1], {**hosts[-1], **changed}], "counts": {"global_batch": 64 * workers, "workers": workers}}


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_run_on_the_hosts_as_they_were_predicted(saved, workers):
    assert prediction.expected(CONFIG, record(workers)) == saved[workers - 1].images_per_s
    assert prediction.expected(CONFIG, record(workers), [64] * workers) == saved[workers - 1].images_per_s


@pytest.mark.parametrize("changed", [{"cpus": 0.19}, {"threads": 2}, {"address": "10.0.0.9"}, {"name": "d"}])
def test_a_prediction_for_other_hosts_or_shares_of_a_processor_is_not_quoted(saved, changed):
    assert prediction.expected(CONFIG, record(**changed)) is None
    assert prediction.expected(CONFIG, record(2)) == saved[1].images_per_s, "the changed one does not train"


@pytest.mark.parametrize("shares", [[80, 80, 32], [0, 0, 0], [96, 96]])
def test_a_prediction_for_other_parts_of_a_step_is_not_quoted(saved, shares):
    assert prediction.expected(CONFIG, record(), shares) is None


def test_a_run_whose_hosts_facts_are_unknown(saved):
    old = record()
    del old["hosts"][0]["cpus"]
    assert prediction.expected(CONFIG, old) is None


def test_a_prediction_of_an_earlier_version_is_not_quoted(saved):
    (file,) = prediction.FOLDER.iterdir()
    value = prediction.read_json(file)
    del value["made_with"]
    prediction.write_json(file, value)
    assert prediction.expected(CONFIG, record()) is None
