"""Publishing a dataset once, and opening what was published."""

import hashlib
import itertools
import json
import multiprocessing
import os
import select
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from control.__main__ import main
from control.common import configurations
from control.common.plan import Plan
from control.datasets.publishing import image_check, publish
from control.datasets.publishing.publish import PublishedData
from control.datasets.sources.folder import Folder
from control.datasets.sources.idx import Idx
from control.remote import trainer_process
from control.runs.planning import plan_dataset
from control.runs.tasks import publish as publish_dataset
from tests.unit.samples import image_bytes
from trainer.common.errors import DatasetError
from trainer.common.files import read_json, sha256_file, write_json
from trainer.data import image_cache, manifest
from trainer.data.images import decode, fit
from trainer.rundir.launch_record import Host


@pytest.fixture
def packs(tmp_path):
    return tmp_path / "packs"


@pytest.fixture(autouse=True)
def few_processes(monkeypatch):
    """Two images need no more than one process."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})


def put(root, packs, allow_bad=False, progress=lambda done, total: None):
    return publish.publish(Folder(str(root)), packs, allow_bad, progress)


def opened(packs, made, size, limit, progress=lambda *_: None):
    return image_cache.open_images(publish.place_of(packs, made.sha256), packs.parent / "caches", size, limit, progress)


def refused(root, packs, allow_bad=False):
    with pytest.raises(DatasetError) as caught:
        put(root, packs, allow_bad)
    return str(caught.value)


def spoil(root, *names):
    for name in names:
        (root / name).write_bytes(b"no image")


def scanned(root):
    return Folder(str(root)).scan()


def test_manifest_is_complete_and_records_are_the_files(make_folder, packs):
    root, progress = make_folder(), []
    made = put(root, packs, progress=lambda done, total: progress.append((done, total)))
    assert (made.classes, made.shape, made.excluded, progress[-1]) == (["cat", "dog"], None, [], (7, 7))
    assert made.train.files == ["train/cat/0.png", "train/cat/1.png", "train/cat/2.png", "train/dog/0.png", "train/dog/1.png"]
    assert (made.train.labels, made.test.labels) == ([0, 0, 0, 1, 1], [0, 1])
    assert sorted(made.validation_order) == [0, 1, 2, 3, 4]
    data = (packs / made.sha256[:16] / "data-00000.pack").read_bytes()
    assert made.shards == [len(data)]
    for records in (made.train, made.test):
        assert len(records.offsets) == len(records.files) + 1
        for name, (start, stop) in zip(records.files, itertools.pairwise(records.offsets), strict=True):
            assert data[start:stop] == (root / name).read_bytes()


def test_published_dataset_is_known_without_reading(make_folder, packs, monkeypatch):
    root = make_folder()
    assert publish.published(scanned(root), packs, False) is None
    made = put(root, packs)
    with monkeypatch.context() as patched:
        patched.setattr(publish, "_pack", lambda *_: pytest.fail("packed again"))
        patched.setattr(Folder, "read", lambda *_: pytest.fail("read again"))
        assert put(root, packs) == made
        assert publish.published(scanned(root), packs, False) == PublishedData.of(made)
    assert PublishedData.of(made) == PublishedData(made.digest, made.sha256, 5, 2, None, [])
    assert publish.published(scanned(root), packs, True) is None
    shutil.rmtree(packs / made.sha256[:16])
    assert publish.published(scanned(root), packs, False) is None
    assert put(root, packs) == made
    assert (packs / made.sha256[:16] / "data-00000.pack").is_file()


def test_left_out_images_are_known_without_reading(make_folder, packs):
    """What was left out is known without reading and the plan counts what is left."""
    root = make_folder()
    spoil(root, "train/cat/1.png")
    made = put(root, packs, allow_bad=True)
    listing = scanned(root)
    known = publish.published(listing, packs, True)
    assert (known.train, known.test, len(known.excluded)) == (4, 2, 1)
    config = configurations.to_dict(configurations.build({"train": {"epochs": 2, "global_batch": 2}}))
    described = plan_dataset.describe(listing, PublishedData.expected(listing))
    before = Plan(run="run", folder=Path("run"), config=config, hosts=[Host(name="pi1"), Host(name="pi2")], dataset=described)
    after = publish_dataset.without(before, PublishedData.of(made))
    assert (before.dataset["train"], before.dataset["left_out"]) == (5, 0)
    assert (after.dataset["train"], after.dataset["left_out"]) == (4, 1)
    assert after.counts["train_images"] + after.counts["validation_images"] == 4


def test_another_split_is_another_dataset(make_folder, packs):
    root = make_folder(train={"cat": 10, "dog": 10})
    shutil.rmtree(root / "test")
    first = put(root, packs)
    other = Folder(str(root), 0.5)
    assert publish.published(other.scan(), packs, False) is None
    made = publish.publish(other, packs, False, lambda *_: None)
    assert (made.digest == first.digest, made.count("test"), first.count("test")) == (False, 10, 4)


def test_planned_split_is_published(make_folder, packs, monkeypatch, capsys):
    """What the plan lists is what another process publishes."""
    root = make_folder(train={"cat": 10, "dog": 10})
    shutil.rmtree(root / "test")
    monkeypatch.setattr(trainer_process, "run_trainer", lambda argv, _: main(argv) or json.loads(capsys.readouterr().out.splitlines()[-1]))
    config = configurations.build({"data": {"source": "folder", "path": str(root), "test_split": 0.3}})
    record = publish_dataset._publish(configurations.to_dict(config)["data"], packs)
    assert publish.published(plan_dataset.open_dataset(config.data, True)[1], packs, False) == record
    assert (record.train, record.test) == (14, 6)


def test_digest_depends_on_content_alone(make_folder, packs, tmp_path):
    root = make_folder()
    first = put(root, packs)
    copy = tmp_path / "elsewhere" / "animals"
    shutil.copytree(root, copy, copy_function=shutil.copyfile)
    os.utime(copy / "train" / "cat" / "0.png", (1, 1))
    assert put(copy, tmp_path / "other").digest == first.digest
    assert put(copy, packs).digest == first.digest
    assert len(list(packs.glob("*/manifest.json"))) == 1


def test_other_labels_give_another_digest(make_idx, packs):
    """In the format of MNIST, names do not tell the class."""
    sources = [Idx(str(make_idx(f"digits{number}", train))) for number, train in enumerate([(0, 1, 0), (1, 0, 0)])]
    first, second = (publish.publish(source, packs, False, lambda *_: None) for source in sources)
    assert first.digest != second.digest


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "train/cat/0.png").write_bytes(image_bytes(99)),
        lambda root: (root / "train/cat/0.png").rename(root / "train/cat/00.png"),  # the order stays
        lambda root: (root / "train/cat/0.png").rename(root / "test/cat/9.png"),
        lambda root: [(root / split / "cat").rename(root / split / "Katze") for split in ("train", "test")],
    ],
    ids=["content", "file name", "split", "class name"],
)
def test_changed_source_gets_a_new_digest(change, make_folder, packs):
    root = make_folder()
    first = put(root, packs)
    change(root)
    assert put(root, packs).digest != first.digest
    assert len(list(packs.glob("*/manifest.json"))) == 2


@pytest.mark.parametrize(
    ("count", "start", "end"), [(1, "1 image can't be read:\n", ""), (23, "23 images can't be read:\n", "\n  ... and 3 more\n")]
)
def test_bad_images_are_named_and_nothing_is_left(count, start, end, make_folder, packs):
    """Bad images are counted and many are cut short."""
    root = make_folder(train={"cat": 24, "dog": 1})
    spoil(root, *(f"train/cat/{number}.png" for number in range(count)))
    message = refused(root, packs)
    assert message.startswith(f"{start}  train/cat/0.png: not a JPEG, PNG, BMP or GIF\n")
    assert message.count(": not a JPEG") == min(count, 20)
    assert message.endswith(f"{end}  Fix or remove them, or leave them out with -e set=data.allow_bad_images=true.")
    assert list(packs.iterdir()) == []


def test_allowed_bad_images_are_left_out_and_recorded(make_folder, packs):
    root = make_folder()
    complete = put(root, packs)
    # The rest is published already.
    spoil(root, "train/cat/9.png")
    for _ in range(2):
        assert put(root, packs, allow_bad=True).excluded == [["train/cat/9.png", "not a JPEG, PNG, BMP or GIF"]]
    assert "train/cat/9.png" in refused(root, packs), "they were allowed once"
    (root / "train" / "cat" / "9.png").unlink()
    assert put(root, packs, allow_bad=True) == complete
    spoil(root, "train/cat/1.png")
    made = put(root, packs, allow_bad=True)
    assert made.train.files == ["train/cat/0.png", "train/cat/2.png", "train/dog/0.png", "train/dog/1.png"]
    assert (made.train.labels, sorted(made.validation_order)) == ([0, 0, 1, 1], [0, 1, 2, 3])


@pytest.mark.parametrize("split", ["train", "test"])
def test_class_without_a_readable_image(split, make_folder, packs):
    root = make_folder()
    spoil(root, *(f"{split}/dog/{file.name}" for file in (root / split / "dog").iterdir()))
    assert refused(root, packs, allow_bad=True) == f"dataset pets: class {split}/dog has no readable image"
    assert list(packs.iterdir()) == []


def test_several_shards_hold_whole_records(make_folder, packs, monkeypatch):
    monkeypatch.setattr(publish, "SHARD_BYTES", 300)
    root = make_folder()
    made = put(root, packs)
    assert len(made.shards) > 2
    assert max(made.shards) <= 300
    folder = packs / made.sha256[:16]
    assert [(folder / manifest.shard_name(number)).stat().st_size for number in range(len(made.shards))] == made.shards
    _, images = opened(packs, made, (6, 6, 3), 0)
    assert_pixels(root, made, images, (6, 6, 3))


def test_a_folder_without_a_usable_manifest_is_refused(tmp_path):
    with pytest.raises(DatasetError) as caught:
        manifest.load(manifest.Published(tmp_path, "0" * 64))
    reason = "no dataset is published there (no manifest.json); run ansible-playbook train.yml to publish it"
    assert str(caught.value) == f"{tmp_path}: {reason}"
    write_json(tmp_path / "manifest.json", {"format": 0})
    with pytest.raises(DatasetError, match="written by another version; remove"):
        manifest.load(manifest.Published(tmp_path, sha256_file(tmp_path / "manifest.json")))


# --- opening


def assert_pixels(root, made, images, size):
    for split in ("train", "test"):
        records = made.records(split)
        wanted = np.stack([fit(decode((root / name).read_bytes()), size) for name in records.files])
        everything = np.arange(len(records.files))
        actual = images[split].pixels(everything)
        assert actual.dtype == np.uint8
        assert np.array_equal(actual, wanted)
        assert np.array_equal(images[split].pixels(everything[::-2]), wanted[::-2])
        assert images[split]._labels.tolist() == records.labels


@pytest.mark.parametrize("size", [(6, 6, 3), (5, 6, 1), (3, 2, 3)])
@pytest.mark.parametrize(("limit", "kind"), [(100, image_cache.CacheImages), (0, image_cache.DecodingImages)])
def test_images_are_decoded_and_fitted(limit, kind, size, make_folder, packs):
    root = make_folder()
    (root / "train" / "dog" / "big.png").write_bytes(image_bytes(70, (20, 30)))
    made = put(root, packs)
    actual, images = opened(packs, made, size, limit)
    assert actual == made
    assert {type(one) for one in images.values()} == {kind}
    assert_pixels(root, made, images, size)


@pytest.mark.parametrize("limit", [100, 0])
def test_raw_records_are_padded(limit, make_idx, packs):
    source = Idx(str(make_idx()))
    made = publish.publish(source, packs, False, lambda *_: None)
    assert made.shape == [4, 3, 1]
    _, images = opened(packs, made, (6, 5, 3), limit)
    raw = np.frombuffer(source.read("train", 2), np.uint8).reshape(4, 3, 1)
    actual = images["train"].pixels(np.array([2]))[0]
    assert np.array_equal(actual[1:5, 1:4], np.repeat(raw, 3, axis=-1))
    assert actual.astype(int).sum() == 3 * raw.astype(int).sum()
    assert images["train"]._labels.tolist() == [0, 1, 0, 1, 1]
    assert images["train"].pixels(np.array([], np.int64)).shape == (0, 6, 5, 3)


@pytest.mark.parametrize("work", ["checks", "caches"])
def test_a_killed_process_leaves_none_behind(work, make_folder, packs, monkeypatch):
    """Its helpers would wait for ever, and a cache would stay locked for all later workers."""
    root, reading = make_folder(), os.pipe()

    def killed(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    if work == "caches":
        made = put(root, packs)
    else:
        monkeypatch.setattr(image_check, "CHUNK", 1)
    source = Folder(str(root))
    check = image_check.ImageCheck(source, source.scan(), packs)
    works = {"checks": lambda: check.readable(False, killed), "caches": lambda: opened(packs, made, (6, 6, 3), 100, killed)}
    process = multiprocessing.get_context("fork").Process(target=works[work])
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    # All that were forked have the pipe's end for writing.
    os.close(reading[1])
    with open(reading[0], "rb") as pipe:
        assert select.select([pipe], [], [], 60)[0], "helpers are left"


def test_cache_is_made_once_for_each_size(make_folder, packs, tmp_path, monkeypatch):
    made, progress, built = put(make_folder(), packs), [], []
    build = image_cache._build
    monkeypatch.setattr(image_cache, "_build", lambda *arguments: built.append(arguments[3]) or build(*arguments))
    for size in ((6, 6, 3), (6, 6, 3), (6, 6, 1)):
        _, images = opened(packs, made, size, 100, lambda done, total: progress.append((done, total)))
        assert images["train"].pixels(np.array([], np.int64)).shape == (0, *size)
    assert built == [(6, 6, 3), (6, 6, 1)]
    assert progress == [(5, 7), (7, 7)] * 2
    folders = sorted(path.name for path in (tmp_path / "caches").iterdir() if path.is_dir())
    assert folders == [f"{made.sha256[:16]}-6x6x1", f"{made.sha256[:16]}-6x6x3"]


def test_failed_cache_leaves_nothing_and_broken_is_cleared(make_folder, packs, tmp_path):
    made, caches = put(make_folder(), packs), tmp_path / "caches"
    (caches / f".part-{made.sha256[:16]}-6x6x3-abc").mkdir(parents=True)

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opened(packs, made, (6, 6, 3), 100, interrupt)
    assert [path.name for path in caches.iterdir() if path.is_dir()] == []


def test_cache_limit_is_in_megabytes_of_pixels(make_folder, packs):
    made = put(make_folder(), packs)
    assert 7 * 400 * 400 > 2**20 > 7 * 380 * 380
    kinds = [type(opened(packs, made, (side, side, 1), 1)[1]["train"]) for side in (380, 400)]
    assert kinds == [image_cache.CacheImages, image_cache.DecodingImages]


# --- what others wrote into the shared folder


@pytest.fixture
def place(make_folder, packs):
    """A published dataset."""
    return publish.place_of(packs, put(make_folder(), packs).sha256)


def labels_all_zero(folder):
    content = json.loads((folder / "manifest.json").read_text())
    content["train"]["labels"] = [0] * len(content["train"]["labels"])
    write_json(folder / "manifest.json", content)


def a_byte(name, position):
    def change(folder):
        data = bytearray((folder / name).read_bytes())
        data[position] ^= 1
        (folder / name).write_bytes(data)

    return change


def cut_short(folder):
    os.truncate(folder / "data-00000.pack", 10)


def other_image(folder):
    """A readable image in the place of another, with the digest that it should have."""
    data, sums = bytearray((folder / "data-00000.pack").read_bytes()), bytearray((folder / "records.sha256").read_bytes())
    records = json.loads((folder / "manifest.json").read_text())["train"]["offsets"]
    first, last = records[:2]
    changed = image_bytes(77)[: last - first].ljust(last - first, b"\0")
    data[first:last], sums[:32] = changed, hashlib.sha256(changed).digest()
    (folder / "data-00000.pack").write_bytes(data)
    (folder / "records.sha256").write_bytes(sums)


CHANGED = r" has SHA-256 [0-9a-f]{16}\.\.\., and [0-9a-f]{16}\.\.\. was published"
ATTACKS = [
    pytest.param(labels_all_zero, rf"manifest\.json{CHANGED}", id="labels"),
    pytest.param(a_byte("data-00000.pack", 200), rf"data-00000\.pack: train/cat/\d\.png{CHANGED}", id="a byte of a pack"),
    pytest.param(a_byte("records.sha256", 3), rf"records\.sha256{CHANGED}", id="a byte of the digests"),
    pytest.param(other_image, rf"records\.sha256{CHANGED}", id="an image with its digest"),
    pytest.param(cut_short, rf"data-00000\.pack: train/cat/0\.png{CHANGED}", id="cut short"),
    pytest.param(lambda folder: (folder / "data-00000.pack").unlink(), r"data-00000\.pack: can't be read: No such file", id="removed"),
]


@pytest.mark.parametrize(("limit", "keeps_time"), [(100, True), (0, False)])
@pytest.mark.parametrize(("attack", "message"), ATTACKS)
def test_a_changed_dataset_is_refused_and_published_again(attack, message, limit, keeps_time, place, tmp_path):
    root, packs, caches = tmp_path / "pets", place.folder.parent, tmp_path / "caches"
    before = {path: path.stat().st_mtime_ns for path in place.folder.iterdir()}
    attack(place.folder)
    for path in place.folder.iterdir() if keeps_time else ():
        os.utime(path, ns=(before[path], before[path]))
    with pytest.raises(DatasetError, match=message) as caught:
        image_cache.open_images(place, caches, (6, 6, 3), limit, quiet)[1]["train"].pixels(np.arange(5))
    assert "Fix: run the same command again" in str(caught.value)
    assert not [path for path in caches.rglob("*") if path.is_dir()]
    listing = scanned(root)
    assert publish.published(listing, packs, False) is None
    put(root, packs)
    assert publish._damaged_files(place) == []
    assert publish.published(listing, packs, False) is not None
    assert_pixels(root, manifest.load(place), image_cache.open_images(place, caches, (6, 6, 3), 0, quiet)[1], (6, 6, 3))


def quiet(*_):
    pass


def test_touched_dataset_is_read_once_and_kept(place, tmp_path, monkeypatch):
    os.utime(place.folder / "data-00000.pack", (1, 1))
    listing, read = Folder(str(tmp_path / "pets")).scan(), []
    damaged_files = publish._damaged_files
    monkeypatch.setattr(publish, "_damaged_files", lambda place: read.append(place) or damaged_files(place))
    for _ in range(3):
        assert publish.published(listing, place.folder.parent, False) is not None
    assert read == [place]


@pytest.mark.parametrize(
    ("change", "keeps_time"),
    [
        (a_byte("train-images.npy", -1), False),
        (a_byte("train-images.npy", -1), True),
        (lambda folder: np.save(folder / "train-labels.npy", np.zeros(5, np.int32)), False),
        (lambda folder: (folder / "cache.json").write_text("{"), False),
        (lambda folder: (folder / "train-images.npy").unlink(), False),
        (lambda folder: write_json(folder / "cache.json", {**read_json(folder / "cache.json"), "manifest": "0" * 64}), False),
    ],
    ids=["pixels", "pixels, time kept", "labels", "record", "file removed", "another dataset's"],
)
def test_a_changed_cache_is_built_again(change, keeps_time, place, tmp_path, capsys, monkeypatch):
    caches, size = tmp_path / "caches", (6, 6, 3)
    image_cache.open_images(place, caches, size, 100, quiet)
    with monkeypatch.context() as patched:
        patched.setattr(image_cache, "_build", lambda *_: pytest.fail("built again"))
        image_cache.open_images(place, caches, size, 100, quiet)
    (folder,) = (path for path in caches.iterdir() if path.is_dir())
    times = (folder / "train-images.npy").stat()
    change(folder)
    if keeps_time:
        os.utime(folder / "train-images.npy", ns=(times.st_atime_ns, times.st_mtime_ns))
    made, images = image_cache.open_images(place, caches, size, 100, quiet)
    assert f"{folder} was changed since it was built; it is built again" in capsys.readouterr().out
    assert_pixels(tmp_path / "pets", made, images, size)
