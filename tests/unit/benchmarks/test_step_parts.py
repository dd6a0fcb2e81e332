"""What `benchmarks/step_parts.py` makes of a benchmark's measurements, and how parts are counted."""

import json
import time

import pytest

from tests.unit.conftest import ROOT, load_file
from trainer.errors import ConfigError

step_parts = load_file(ROOT / "benchmarks" / "step_parts.py", "step_parts")
account = load_file(ROOT / "benchmarks" / "peers" / "account.py", "account")


def result(processor, seconds, **parts):
    calls = [{name: [8 * a, 8 * b] for name, (a, b) in parts.items()}] * 3
    return {"cpu_seconds_step": processor, "seconds_step": seconds, "parts": calls, "settings": {"steps_per_call": 8}}


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(step_parts, "RESULTS", tmp_path)
    cells = {
        "r1-none-5-lockstep-parts": [result(0.045, 0.13, P=(0.003, 0.014), sums=(0.002, 0.025))] * 2,
        "r2-none-5-lockstep-parts": [result(0.043, 0.12, P=(0.002, 0.012), sums=(0.001, 0.021)), None],
        "r1-none-5-ideal": [result(0.037, 0.1)],
        "r1-1gbit-5-ideal": [result(0.037, 0.1)],
    }
    (tmp_path / "mine").mkdir()
    lines = [json.dumps({"cell": cell, "workers": [{"result": one} for one in found]}) for cell, found in cells.items()]
    (tmp_path / "mine" / "measurements.jsonl").write_text("\n".join(lines) + "\n")


def test_parts_are_medians_and_what_is_left_is_tensorflows(results):
    found = step_parts.measured("mine")
    assert list(found) == ["5 workers, link none"]
    (place, systems), *_ = found.items()
    lines = step_parts.table(place, systems).splitlines()
    assert lines[0] == "5 workers, link none, milliseconds per step"
    assert [line.split()[-2:] for line in lines[2:]] == [
        ["45.0", "130.0"],
        ["40.0", "-"],
        ["3.0", "14.0"],
        ["2.0", "25.0"],
        ["37.0", "100.0"],
    ]


def test_unknown_results_are_named_with_the_nearest(results):
    with pytest.raises(ConfigError, match=r"^mnie: no results of benchmarks/peers.yml \(did you mean mine\?\); there are: mine$"):
        step_parts.measured("mnie")


def test_results_without_parts_say_how_to_measure_them(results, tmp_path):
    path = tmp_path / "mine" / "measurements.jsonl"
    path.write_text(path.read_text().splitlines()[-1] + "\n")
    with pytest.raises(
        ConfigError, match=r"lockstep-parts was not measured; benchmarks/peers.yml -e peers=mine -e systems=lockstep-parts,"
    ):
        step_parts.measured("mine")


def test_an_account_counts_processor_time_apart_from_waiting():
    class Work:
        def wait(self, seconds):
            time.sleep(seconds)
            return seconds

        def compute(self):
            return sum(range(200_000))

    book = account.Account()
    for part, name in (("waiting", "wait"), ("computing", "compute")):
        book.watch(part, Work, name)
    work = Work()
    assert work.wait(0.05) == 0.05
    assert work.compute() == sum(range(200_000))
    taken = book.take()
    assert taken["waiting"][0] < 0.05 <= taken["waiting"][1]
    assert taken["computing"][0] > 0
    assert book.take() == {"waiting": [0.0, 0.0], "computing": [0.0, 0.0]}


def test_what_a_failing_function_took_counts_too():
    book, owner = account.Account(), type("Owner", (), {"fail": lambda self: 1 / 0})
    book.watch("failing", owner, "fail")
    with pytest.raises(ZeroDivisionError):
        owner().fail()
    assert book.take()["failing"][1] > 0
