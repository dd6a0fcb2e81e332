"""Loaders: how many decode, what a pass is, what passes say; pictures to time them with."""

import csv
import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import jinja2.meta
import numpy as np
import pytest
import yaml
from PIL import Image

from benchmarks.node import loader as benchmark_loader
from benchmarks.node import passes as node_passes
from benchmarks.node_results import loader_results
from benchmarks.node_results.passes import Machine, Spread, grouped
from benchmarks.shared import benchmark, pictures
from benchmarks.tasks import conclude, plan_loader
from control.common import configurations
from control.common.task import Task
from control.datasets.publishing import publish
from control.datasets.sources import idx
from control.datasets.sources.folder import Folder
from plugins.shared import host_job
from trainer.common.errors import ConfigError, DatasetError, LockstepError
from trainer.data import image_cache
from trainer.worker import process

ROOT = Path(__file__).resolve().parents[3]
SIZE = (6, 6, 3)


@pytest.fixture
def packs(make_folder, tmp_path):
    """A published folder of 7 training images."""
    root = make_folder(train={"cat": 4, "dog": 3})
    made = publish.publish(Folder(str(root)), tmp_path / "packs", False, lambda *_: None)
    return publish.place_of(tmp_path / "packs", made.sha256)


def opened(packs, loaders):
    return image_cache.open_images(packs, packs.folder, SIZE, 0, lambda *_: None, loaders)[1]["train"]


# --- how many decode


@pytest.mark.parametrize("loaders", [3, 50, None])
def test_any_number_of_loaders_gives_the_same_images(packs, loaders, monkeypatch):
    """By default a loader a core."""
    monkeypatch.setattr(image_cache.os, "sched_getaffinity", lambda _: {0, 3, 5})
    assert opened(packs, loaders)._threads._max_workers == (loaders or 3)
    indices = np.array([6, 0, 3, 3, 1, 5, 2, 4])
    assert np.array_equal(opened(packs, loaders).pixels(indices), opened(packs, 1).pixels(indices))


@pytest.mark.parametrize("loaders", [1, 4])
def test_so_many_loaders_decode_at_once(packs, loaders, monkeypatch):
    images, together, seen = opened(packs, loaders), threading.Barrier(loaders, timeout=60), set()

    def image(index):
        if len(seen) < loaders:
            seen.add(threading.get_ident())
            together.wait()
        return np.zeros(SIZE, np.uint8)

    monkeypatch.setattr(images._reader, "image", image)
    images.pixels(np.arange(7))
    assert len(seen) == loaders


def test_an_image_that_can_not_be_decoded_ends_the_gathering(packs, monkeypatch):
    images = opened(packs, 2)
    monkeypatch.setattr(images._reader, "image", lambda index: 1 / 0 if index == 5 else np.zeros(SIZE, np.uint8))
    with pytest.raises(ZeroDivisionError):
        images.pixels(np.arange(7))


def test_the_worker_takes_as_many_as_its_configuration_says(tmp_path, monkeypatch):
    class Asked(Exception):
        pass

    def open_examples(published, caches, data, progress):
        raise Asked(data.loaders)

    (tmp_path / "config.yml").write_text("data: {loaders: 3}\n")
    monkeypatch.setattr(process, "open_examples", open_examples)
    metrics = process.Metrics(tmp_path / "metrics.jsonl")
    with pytest.raises(Asked, match=r"^3$"):
        process._train(process.Launch(tmp_path, "a", tmp_path, tmp_path, 1, 0, 0, 1.0), metrics, None)


# --- passes


class Recorded:
    """Images that note which were asked for."""

    def __init__(self, count):
        self.labels, self.asked = np.zeros(count, np.int32), []

    def gather(self, indices):
        self.asked += indices.tolist()
        return np.zeros((len(indices), *SIZE), np.uint8), self.labels[indices]


@pytest.mark.parametrize(("count", "batch"), [(7, 2), (8, 2), (1, 64)])
def test_a_pass_sees_every_chosen_image_once(count, batch, monkeypatch):
    """In another order each time."""
    images, lines = Recorded(20), []
    files = SimpleNamespace(files=[None] * 20, offsets=list(range(21)))
    manifest = SimpleNamespace(shape=None, train=files, test=SimpleNamespace(files=[]))
    monkeypatch.setattr(benchmark_loader, "open_images", lambda *_: (manifest, {"train": images}))
    monkeypatch.setattr(benchmark_loader, "REPORT_EVERY_S", 0)
    config = configurations.build({"train": {"batch_size": batch, "steps_per_call": 2}})
    actual = benchmark_loader.measure(config, None, benchmark_loader.Wanted((1,), 2, count), lines.append)
    assert [list(row)[3:] for row in actual["rows"]] == [["seconds", "cpu_seconds", "idle_seconds"]] * 2
    first, second = images.asked[count : 2 * count], images.asked[2 * count :]
    assert len(set(first)) == count
    assert sorted(first) == sorted(second)
    assert count < 7 or first != second
    assert lines[-1] == f"pass 3 of 3 (loaders: 1): {count} of {count} images"


def test_what_is_measured(packs):
    lines = []
    wanted = benchmark_loader.Wanted((1, 3), 2)
    actual = benchmark_loader.measure(configurations.build({"data": {"image_size": list(SIZE)}}), packs, wanted, lines.append)
    assert [(row["loaders"], row["number"], row["images"]) for row in actual["rows"]] == [(1, 1, 7), (3, 1, 7), (3, 2, 7), (1, 2, 7)]
    assert all(row["seconds"] > 0 for row in actual["rows"])
    assert actual["images"] == 7
    assert actual["bytes"] == sum(path.stat().st_size for path in (packs.folder.parents[1] / "pets" / "train").rglob("*.png"))
    assert actual["decoded_mb"] == 9 * 108 / 2**20
    assert lines == ["pass 1 of 5 (warm-up, loaders: 3): 7 of 7 images"], "more than once a second is too much"


def test_passes_vary_images_as_a_training_would(packs):
    script = f"""
from pathlib import Path
from benchmarks.node import loader as benchmark_loader
from trainer.config import loading
from trainer.step import image_augmentation
from trainer.data import manifest
seen, make = [], image_augmentation.make_augmentation
def noted(*how):
    augment = make(*how)
    return lambda batch: seen.append(batch.data[0].shape) or augment(batch)
image_augmentation.make_augmentation = noted
found = benchmark_loader.measure(
    loading.build({{"data": {{"image_size": [6, 6, 3]}}, "augment": {{"rotate": 5}}, "train": {{"batch_size": 3}}}}),
    manifest.Published(Path({str(packs.folder)!r}), {packs.sha256!r}), benchmark_loader.Wanted((1,), 1), lambda _: None)
print(seen, len(found["rows"]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    one_pass = "(3, 6, 6, 3), (3, 6, 6, 3), (1, 6, 6, 3)"
    assert done.stdout == f"[{one_pass}, {one_pass}] 1\n"


def test_raw_pixels_of_any_source_are_refused_where_they_are_read(make_idx, tmp_path):
    made = publish.publish(idx.Idx(str(make_idx())), tmp_path / "packs", False, lambda *_: None)
    with pytest.raises(DatasetError, match="its images are raw pixels, so loaders have nothing to decode"):
        benchmark_loader.measure(
            configurations.build({}), publish.place_of(tmp_path / "packs", made.sha256), benchmark_loader.Wanted((1,), 1), lambda _: None
        )


def test_the_command_line_writes_results(packs, tmp_path):
    (tmp_path / "config.yml").write_text("data: {image_size: [6, 6, 3]}\n")
    given = ["--config", tmp_path / "config.yml", "--out", tmp_path / "out", "--passes", "1", "--loaders", "1,2"]
    data = ["--packs", packs.folder, "--manifest", packs.sha256]
    subprocess.run([sys.executable, "-m", "benchmarks.node", "loader", *map(str, [*given, *data])], check=True, cwd=ROOT)
    rows = json.loads((tmp_path / "out/results.json").read_text())["rows"]
    assert {row["loaders"] for row in rows} == {1, 2}
    record = json.loads((tmp_path / "out/metrics.jsonl").read_text().splitlines()[0])
    assert (record["kind"], record["phase"], record["note"]) == ("phase", "timing", "pass 1 of 3 (warm-up, loaders: 2): 7 of 7 images")


# --- what passes say


def passes(rates, images=1000):
    """`rates`: loaders -> images/s of each pass; every pass keeps half a core a loader busy and leaves a quarter idle."""
    rows = []
    for loaders, some in rates.items():
        for number, rate in enumerate(some, 1):
            took = {"seconds": images / rate, "cpu_seconds": loaders * images / rate / 2, "idle_seconds": images / rate / 4}
            rows.append({"loaders": loaders, "number": number, "images": images, **took})
    return rows


NEAR, FAR = {1: [1000, 1010, 990], 2: [1500, 1700, 1600], 3: [1600, 1800, 1700]}, {1: [500, 1500], 2: [1800, 900], 3: [1800, 900]}


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ({1: [1000], 2: [1800], 3: [1820]}, "2 loaders are enough: 1,800 images/s, 1.80 times those of 1; more bring less than 3%."),
        ({1: [1000], 2: [900]}, "1 loader is enough: 1,000 images/s; more bring less than 3%."),
        (
            {1: [1000], 4: [3000]},
            "The most loaders measured are the fastest: 4 loaders, 3,000 images/s, 3.00 times those of 1; more may be",
        ),
        (NEAR, "2 loaders are enough: 1,600 images/s, 1.60 times those of 1; what more bring (6%) is within what passes differ by."),
        (FAR, "Passes differ too much to be sure of that: measure more of them, as in -e passes=6."),
        ({2: [1500]}, "2 loaders: 1,500 images/s."),
    ],
)
def test_the_answer(rates, message):
    answer = loader_results._answer(grouped(passes(rates), "loaders"), 4)
    assert message in answer
    assert answer.endswith(" Training takes 4 here (the cores) unless data.loaders says otherwise.")


@pytest.mark.parametrize(
    ("megabytes", "sentence"),
    [
        (3000.4, "3,000 MB, above data.cache_limit_mb=2048: training decodes them in every epoch, as timed here."),
        (12, "12 MB, within data.cache_limit_mb=2048: training would decode them once and read a cache from then on; "),
    ],
)
def test_whether_training_would_decode_at_all(megabytes, sentence):
    assert loader_results._cached(megabytes, 2048).startswith(f"Decoded, all images take {sentence}")


def concluded(rates):
    timed = {"rows": passes(rates), "images": 1000, "bytes": 9, "decoded_mb": 3, "cores": 4}
    bench = {"image_size": [6, 6, 3], "dataset": "pets", "made": True, "cache_limit_mb": 2048}
    return loader_results.conclude(bench, timed, 4)


def test_the_table():
    assert concluded({1: [500, 500], 2: [1000, 800]}).table() == (
        "  loaders  ms per pass (mean)  ± deviation  images/s (median)  ± deviation  busy cores  idle cores\n"
        "        1            2,000.00         0.00                500            0         0.5         0.2\n"
        "        2            1,125.00       176.78                900          141         1.0         0.2"
    )


def test_a_single_pass_has_no_deviation():
    (row,) = concluded({1: [500]}).groups
    assert list(map(str, row.cells())) == ["1", "2,000.00", "-", "500", "-", "0.5", "0.2"]
    seconds, rate = ({"mean": mean, "deviation": None, "median": mean} for mean in (2.0, 500.0))
    assert row.record() == {"loaders": 1, "seconds": seconds, "images_per_s": rate, "busy_cores": 0.5, "idle_cores": 0.25}


@pytest.mark.parametrize("rates", [{1: [500]}, {n: [100.0 * n] * 5 for n in range(1, 33)}])
def test_the_picture_is_the_same_each_time(rates, tmp_path):
    for name in ("a.png", "b.png"):
        concluded(rates).draw("node01: Cortex-A72, 4 cores", tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size == (960, 810)
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 50, "not an empty canvas"


# --- hosts and files

FACTS = {"model": "Cortex-A72", "machine": "aarch64", "cores": 4, "cpus": 4, "cpu_quota": None, "port": {"state": "free"}, "user": "pi"}
FACTS |= dict.fromkeys(("os", "memory", "load", "governors", "temperature", "throttled"), "as found")
FACTS |= {"python": {"path": "/p", "version": "3.11.2", "packages": {"numpy": "2"}}}
NO_PYTHON, HELD = {**FACTS, "python": {"path": "/p", "error": "is missing"}}, {**FACTS, "port": {"state": "held", "run": "x"}}


def test_a_host_in_a_line():
    host = Machine("node01", FACTS)
    assert str(host) == "node01: Cortex-A72, 4 cores"
    assert (host.record["python"], host.record["packages"], "user" in host.record) == ("3.11.2", {"numpy": "2"}, False)
    assert str(Machine("node01", {**FACTS, "model": "", "cpu_quota": 0.38})) == "node01: aarch64, 4 cores, 0.38 of them granted"


def test_what_repeats_tell_apart():
    one, other, far = Spread((10.0, 11.0, 9.0)), Spread((12.0, 11.0, 13.0)), Spread((20.0, 21.0, 19.0))
    assert not one.differs(other)
    assert one.differs(far)
    assert not Spread((1.0,)).differs(far), "single repeats say nothing"


@pytest.mark.parametrize(
    ("cpus", "busy", "idle", "message"),
    [
        (4, 1.0, 3.0, ""),
        (4, 1.0, 2.3, ""),
        (4, 1.0, 1.0, "Warning: other processes took 2.0 of 4 cores; measure again on a quiet host."),
        (0.38, 0.38, 0.0, ""),
    ],
)
def test_other_processes_are_told_of(cpus, busy, idle, message):
    quiet = {"seconds": 0.5, "cpu_seconds": 0.5 * busy, "idle_seconds": 0.5 * (4 - busy)}
    rows = [{"seconds": 2.0, "cpu_seconds": 2 * busy, "idle_seconds": 2 * idle}]
    host = Machine("node01", {**FACTS, "cpus": cpus})
    assert host.disturbed(rows) == message
    assert host.disturbed([{**rows[0], "seconds": 0.1}]) == "", "too short to be known"
    assert host.disturbed([*rows, *[quiet] * 40]) == "", "most passes had the host for themselves"


def test_idle_seconds_are_those_of_all_cores_and_of_waiting_for_disks():
    assert node_passes.idle_seconds("cpu  10 20 30 400 50 6 7 8 9 10\ncpu0 1 2 3 4 5\n") == 4.5


def test_files_of_a_result(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "RESULTS", tmp_path)
    bench = {"kind": "loader", "name": "new", "date": "now", "command": "again", "code_name": "code", "settings": {"passes": 1}}
    bench |= {"image_size": [6, 6, 3], "dataset": "pets", "made": True, "cache_limit_mb": 2048}
    timed = {"rows": passes({1: [300], 2: [800]}), "images": 1000, "bytes": 9000, "decoded_mb": 3, "cores": 4}
    shown = conclude.conclude(Task({"bench": bench, "timed": timed, "host": "node01", "facts": FACTS}, {}, False))["show_last"]
    with (tmp_path / "new/results.csv").open() as stream:
        assert list(csv.reader(stream))[:2] == [
            ["loaders", "number", "images", "seconds", "cpu_seconds", "idle_seconds"],
            ["1", "1", "1000", "3.333333", "1.666667", "0.833333"],
        ]
    summary = json.loads((tmp_path / "new/summary.json").read_text())
    assert (summary["mean_file_bytes"], summary["host"]["name"], summary["answer"] in shown.replace("\n", " ")) == (9, "node01", True)
    assert shown.endswith("once more           again")


def test_a_command_can_be_typed_again():
    options = {"dataset": "my pictures", "set": "a.b=[1,2]"}
    assert benchmark.command("benchmarks/loader.yml", options) == (
        "ansible-playbook benchmarks/loader.yml -e 'dataset=\"my pictures\"' -e 'set=a.b=[1,2]'"
    )
    assert benchmark.command("benchmarks/loader.yml", {}) == "ansible-playbook benchmarks/loader.yml"


def test_raw_pixels_have_nothing_to_decode(make_idx, make_folder):
    root = make_idx()
    with pytest.raises(ConfigError) as caught:
        plan_loader._check_folder(str(root))
    assert str(caught.value) == (
        f"dataset={root}: its images are raw pixels, so loaders have nothing to decode; give a folder with train/<class>/ and "
        "test/<class>/ of JPEG files, or leave dataset= out to have one made"
    )
    plan_loader._check_folder(str(make_folder()))


@pytest.mark.parametrize(
    ("looked", "message"),
    [
        ({"msg": "no answer"}, "a: no answer"),
        ({"facts": NO_PYTHON}, "a: /p is missing; make it: ansible-playbook provision.yml"),
        (
            {"facts": HELD},
            "a: run=x trains there, and times taken beside it would be wrong; wait for its end, or stop it: ansible-playbook ",
        ),
    ],
)
def test_a_host_that_can_not_be_measured(looked, message):
    with pytest.raises(LockstepError, match=f"^{message}"):
        conclude.check_host(Task({"host": "a", "looked": looked}, {}, False))
    assert conclude.check_host(Task({"host": "a", "looked": {"facts": FACTS}}, {}, False)) == {}


def test_the_start_script_is_given_all_that_its_template_reads():
    play = yaml.safe_load((ROOT / "benchmarks/time_on_host.yml").read_text())[0]
    environment = jinja2.Environment()
    environment.filters |= {"quote": str, "checked_code": str, "fork_server_key": str}
    template = environment.parse((ROOT / "templates/run_worker.sh.j2").read_text())
    assert jinja2.meta.find_undeclared_variables(template) <= {*play["vars"]["bench_script"], "worker_root", "inventory_hostname"}


@pytest.mark.parametrize(
    ("end", "lines", "message"),
    [
        ({"exit_code": 1}, ["noise", "error: devices=9: too many"], "devices=9: too many"),
        ({"exit_code": 137}, ["x", "y"], "the benchmark failed, exit code 137; the last lines of its log:\n  x\n  y"),
        (None, ["x"], "the benchmark failed, its session ended without an exit code (killed, "),
    ],
)
def test_why_there_are_no_numbers(end, lines, message):
    assert host_job.failure("the benchmark", "a", end, lines).startswith(f"a: {message}")


# --- pictures


def test_pictures_are_the_same_for_every_count(tmp_path):
    calls = []
    pictures.make_pictures(tmp_path / "a", 5, lambda *numbers: calls.append(numbers))
    pictures.make_pictures(tmp_path / "b", 9, lambda *_: None)
    names = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.jpg"))
    assert [str(name) for name in names if "test" in name.parts] == [f"test/person-{label}/00000{label}.jpg" for label in range(4)]
    assert calls == [(number, 9) for number in range(1, 10)]
    assert len({(tmp_path / "b" / name).read_bytes() for name in names}) == len(names) == 9
    assert [(tmp_path / "a" / name).read_bytes() for name in names] == [(tmp_path / "b" / name).read_bytes() for name in names]
    with Image.open(tmp_path / "a" / names[0]) as picture:
        assert 200 <= min(picture.size) <= max(picture.size) <= 300
    listing = Folder(str(tmp_path / "b")).scan()
    assert (listing.classes, np.bincount(listing.labels["train"]).tolist()) == ([f"person-{label}" for label in range(4)], [3, 2, 2, 2])


def test_pictures_are_made_once_and_whole(tmp_path, monkeypatch):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pictures.make_pictures(tmp_path / "a", 4, interrupt)
    assert list(tmp_path.iterdir()) == []
    pictures.make_pictures(tmp_path / "a", 4, lambda *_: None)
    monkeypatch.setattr(pictures, "_write", None)
    pictures.make_pictures(tmp_path / "a", 4, interrupt)
