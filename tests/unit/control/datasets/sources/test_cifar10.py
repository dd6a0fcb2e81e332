"""CIFAR-10's archives and folders, made up and, where they are, real; TFRecords written and read."""

import functools
import gzip
import hashlib
import io
import json
import os
import pickle
import re
import subprocess
import sys
import tarfile
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from control.datasets.listing import registry
from control.datasets.publishing import publish, to_tfrecords
from control.datasets.sources import cifar10, tfrecords
from tests.unit import forked
from tests.unit.samples import ROOT, real_data
from trainer.common.errors import DatasetError
from trainer.common.files import sha256_file
from trainer.config import schedule
from trainer.config import schema as configs
from trainer.data.image_cache import open_images
from trainer.data.manifest import Published

SIZE = 100
"""Images of a batch in these archives; the real ones have 10,000."""


def quiet(*_):
    pass


@pytest.fixture(autouse=True)
def small(request, monkeypatch):
    if "real" not in request.node.name:
        monkeypatch.setattr(cifar10, "BATCH", SIZE)


@functools.cache
def batch(number):
    random = np.random.default_rng(number)
    labels = np.repeat(np.arange(10), SIZE // 10)
    random.shuffle(labels)
    return random.integers(0, 256, (SIZE, 3072), dtype=np.uint8), labels


def python_members():
    names = cifar10.ARCHIVES["python"].batches
    for number, name in enumerate(names):
        images, labels = batch(number)
        yield f"cifar-10-batches-py/{name}", pickle.dumps({b"data": images, b"labels": labels.tolist()}, protocol=2)


def binary_members():
    names = cifar10.ARCHIVES["binary"].batches
    for number, name in enumerate(names):
        images, labels = batch(number)
        yield f"cifar-10-batches-bin/{name}", np.hstack([labels.astype(np.uint8)[:, None], images]).tobytes()


def packed(path, members, *first):
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for info in first:
            archive.addfile(info)
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    place = tmp_path_factory.mktemp("archives")
    return {
        "python": packed(place / "cifar-10-python.tar.gz", python_members()),
        "binary": packed(place / "cifar-10-binary.tar.gz", binary_members()),
    }


@pytest.mark.parametrize("kind", ["python", "binary"])
def test_batches_become_splits(kind, archives):
    seen = []
    splits = cifar10.read_splits(archives[kind], "any", lambda done, total: seen.append((done, total)))
    assert seen == [(number * SIZE, 6 * SIZE) for number in range(1, 7)]
    shapes = {name: split.images.shape for name, split in splits.items()}
    assert shapes == {"train": (400, 3, 32, 32), "validation": (100, 3, 32, 32), "eval": (100, 3, 32, 32)}
    for name, start, number in (("train", 0, 0), ("train", 300, 3), ("validation", 0, 4), ("eval", 0, 5)):
        images, labels = batch(number)
        part = slice(start, start + SIZE)
        assert (splits[name].images[part].reshape(-1, 3072) == images).all()
        assert (splits[name].labels[part] == labels).all()


@pytest.fixture
def unpacked(archives, tmp_path):
    """The folder of an unpacked archive."""
    with tarfile.open(archives["binary"]) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "cifar-10-batches-bin"


def test_an_unpacked_archive_is_read(unpacked):
    for folder in (unpacked, unpacked.parent):
        assert (cifar10.read_splits(folder, None, quiet)["eval"].labels == batch(5)[1]).all()


def refused(path, digest=None):
    with pytest.raises(DatasetError) as caught:
        cifar10.read_splits(path, digest, quiet)
    return str(caught.value)


def test_another_digest_is_refused_with_the_fix(archives):
    digest = hashlib.md5(archives["python"].read_bytes()).hexdigest()
    message = refused(archives["python"])
    assert message.startswith(f"{archives['python']}: its digest is md5:{digest}, not one of the official archives':")
    assert message.endswith(f"-e digest=md5:{digest}")
    assert "not sha256:00" in refused(archives["python"], "sha256:00")
    assert refused(archives["python"], "crc:1") == "digest=crc:1: expected md5:HEX, sha256:HEX or any"
    assert cifar10.read_splits(archives["python"], f"md5:{digest}", quiet)["eval"].labels.shape == (SIZE,)


def test_a_truncated_archive_is_refused(archives, tmp_path):
    short = tmp_path / "short.tar.gz"
    short.write_bytes(archives["python"].read_bytes()[:-50_000])
    assert "it is truncated or another file" in refused(short)
    assert refused(short, "any").startswith(f"{short}: truncated or not an archive:")


SECOND, DAMAGED = "data_batch_2.bin", "data_batch_2.bin: truncated or damaged: "


@pytest.mark.parametrize(
    ("name", "change", "wrong"),
    [
        (SECOND, lambda data: data[:-7], f"{DAMAGED}307,293 bytes are not a multiple of the record size, 3,073"),
        (SECOND, lambda data: data[:-3073], f"{DAMAGED}99 images and 99 labels, not 100"),
        ("test_batch.bin", lambda data: b"\x0a" + data[1:], "eval has the label 10; labels are 0 to 9"),
        (SECOND, lambda data: None, f"cifar-10-batches-bin/{SECOND} is missing: the archive is truncated or not CIFAR-10"),
    ],
)
def test_damaged_batches_are_refused(name, change, wrong, tmp_path):
    members = dict(binary_members())
    changed = change(members.pop(f"cifar-10-batches-bin/{name}"))
    if changed is not None:
        members[f"cifar-10-batches-bin/{name}"] = changed
    assert wrong in refused(packed(tmp_path / "bad.tar.gz", members.items()), "any")


class Harmful:
    def __reduce__(self):
        return os.system, ("true",)


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    members = [("cifar-10-batches-py/data_batch_1", pickle.dumps({b"data": Harmful(), b"labels": []}, protocol=2))]
    message = refused(packed(tmp_path / "harm.tar.gz", members), "any")
    assert "data_batch_1: truncated or damaged: it asks for posix.system, which no CIFAR-10 batch contains" in message


FIRST = "cifar-10-batches-bin/data_batch_1.bin"


@pytest.mark.parametrize(
    ("name", "kind", "link", "what"),
    [
        (FIRST, tarfile.SYMTYPE, "/etc/passwd", "is a link to /etc/passwd"),
        (FIRST, tarfile.SYMTYPE, "data_batch_1.bin", "is a link to data_batch_1.bin"),
        (FIRST, tarfile.LNKTYPE, "../../gone", "is a link to ../../gone"),
        ("cifar-10-batches-bin/extra", tarfile.SYMTYPE, "x\n\x1b[2J", "is a link to x\\n\\x1b[2J"),
        ("cifar-10-batches-bin/pipe", tarfile.FIFOTYPE, "", "is a device or pipe"),
        ("cifar-10-batches-bin/disk", tarfile.BLKTYPE, "", "is a device or pipe"),
        ("/etc/cron.d/job", tarfile.REGTYPE, "", "leaves the archive's folder"),
        ("cifar-10-batches-bin/../../x", tarfile.REGTYPE, "", "leaves the archive's folder"),
    ],
)
def test_archive_with_links_or_devices_is_refused(name, kind, link, what, tmp_path):
    path, extra = tmp_path / "hostile.tar.gz", tarfile.TarInfo(name)
    extra.type, extra.linkname = kind, link
    packed(path, ((other, data) for other, data in binary_members() if other != name), extra)
    message = refused(path, "any")
    assert message == f"{path}: {name} {what}; CIFAR-10 archives have no such member. Fix: fetch the archive again"


def test_batch_that_would_fill_memory_is_refused(tmp_path):
    """A sparse member of 4 GB takes a few bytes of an archive."""
    (tmp_path / "data").mkdir()
    with (tmp_path / "data" / "sparse").open("wb") as stream:
        stream.truncate(2**32)
    path = tmp_path / "bomb.tar"
    subprocess.run(["tar", "-C", tmp_path / "data", "-S", "--transform", f"s,.*,{FIRST},", "-cf", path, "sparse"], check=True)
    assert path.stat().st_size < 100_000
    assert f"{FIRST} has 4,294,967,296 bytes" in refused(path, "any")


@pytest.mark.parametrize("other", ["/dev/zero", "pipe"])
def test_unpacked_batch_that_is_no_file_is_refused(other, unpacked, tmp_path):
    """An unpacked batch that is a device or pipe is refused."""
    os.mkfifo(tmp_path / "pipe")
    victim = unpacked / "data_batch_2.bin"
    victim.unlink()
    victim.symlink_to(tmp_path / other)
    assert refused(tmp_path) == f"{victim}: can't be read: not a regular file"


def test_other_places_are_refused(tmp_path):
    with pytest.raises(DatasetError, match="no such file or folder; give a python or binary archive of CIFAR-10"):
        to_tfrecords.convert("cifar10", tmp_path / "nowhere", None, tmp_path / "out", quiet)
    assert refused(tmp_path).startswith(f"path={tmp_path}: not CIFAR-10")
    assert "is a folder; leave it out" in refused(tmp_path, "md5:0")
    assert "not CIFAR-10" in refused(packed(tmp_path / "other.tar.gz", [("other/file", b"")]), "any")
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (32, 32)).save(tmp_path / split / name / "a.png")
    assert "its classes are cat, dog; CIFAR-10's are airplane" in refused(tmp_path)


CONVERTED = """
import json, os, sys
from pathlib import Path
from trainer.worker import process
process.quiet_tensorflow()
from control.datasets.sources import cifar10
from control.datasets.publishing import to_tfrecords
from trainer.common.errors import DatasetError
import tensorflow as tf

cifar10.BATCH = 100
binary, python, folder, out = map(Path, sys.argv[1:])
lines = []
def convert(path, digest="any", check=False, out=out):
    try:
        return to_tfrecords.convert("cifar10", path, digest, out, lines.append, check)
    except DatasetError as error:
        return str(error)
found = {"looked": [convert(binary, None, True), convert(binary, check=True)["changed"], os.listdir(out.parent)]}
found["made"], found["lines"], found["files"] = convert(binary), lines[-3:], sorted(os.listdir(out))
first = next(tf.data.TFRecordDataset(str(out / "eval.tfrecords")).as_numpy_iterator())
feature = tf.train.Example.FromString(first).features.feature
found["image"], found["label"] = feature["image"].bytes_list.value[0].hex(), feature["label"].int64_list.value[0]
found["again"] = [convert(binary, check=check)["changed"] for check in (False, True)]
found["other"] = convert(python)
found["folder"] = [convert(folder, None, check, out.parent / "two")["changed"] for check in (False, True)]
os.utime(next(folder.rglob("data_batch_2.bin")), (1, 1))
found["changed"] = convert(folder, None, True, out.parent / "two")
(out / "eval.tfrecords").unlink()
found["incomplete"] = convert(binary)
print(json.dumps(found))
"""


def test_archive_becomes_tfrecords_once_and_looking_writes_nothing(archives, unpacked, tmp_path):
    (tmp_path / "made").mkdir()
    paths = (archives["binary"], archives["python"], unpacked, tmp_path / "made" / "out")
    actual = forked.answer(CONVERTED, *map(str, paths))
    assert ("its digest is" in actual["looked"].pop(0), actual["looked"]) == (True, [True, []])
    files = {"train.tfrecords": 400, "validation.tfrecords": 100, "eval.tfrecords": 100}
    assert {name: file["records"] for name, file in actual["made"]["files"].items()} == files
    assert actual["files"] == ["dataset.json", *sorted(files)]
    assert actual["lines"] == [f"writing {name}" for name in files]
    images, labels = batch(5)
    assert (actual["image"], actual["label"]) == (images[0].tobytes().hex(), labels[0])
    assert (actual["made"]["changed"], actual["again"], actual["folder"]) == (True, [False, False], [True, False])
    for what in ("other", "changed"):
        assert "already exists, converted from another source" in actual[what]
    assert "already exists, and not written by this command" in actual["incomplete"]


def test_what_cant_be_converted_is_refused():
    with pytest.raises(DatasetError, match=r"source=cifar: can't be converted \(did you mean cifar10\?\)"):
        to_tfrecords.check_kind("cifar")


@pytest.mark.exhaustive
def test_real_images_give_40000_10000_10000(tmp_path):
    archive = real_data("cifar10-images.tar.gz")
    with tarfile.open(archive) as stream:
        stream.extractall(tmp_path, filter="data")
    splits = cifar10.read_splits(tmp_path, None, quiet)
    assert {name: len(split.labels) for name, split in splits.items()} == {"train": 40_000, "validation": 10_000, "eval": 10_000}
    for name, each in (("train", 4000), ("validation", 1000), ("eval", 1000)):
        assert np.bincount(splits[name].labels).tolist() == [each] * 10
    with Image.open(tmp_path / "test" / "airplane" / "0000.jpg") as image:
        assert (splits["eval"].images[0] == np.asarray(image.convert("RGB")).transpose(2, 0, 1)).all()


# --- TFRecords as a source


HELPER = """
import pickle, sys
from pathlib import Path
from trainer.worker import process
process.quiet_tensorflow()
import tensorflow as tf
from control.datasets.sources import tfrecords
from trainer.common.errors import DatasetError
from trainer.common.files import sha256_file

def feature(value):
    if isinstance(value, int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

def write(files):
    for path, rows in files:
        with tf.io.TFRecordWriter(path) as stream:
            for row in rows:
                features = tf.train.Features(feature={key: feature(value) for key, value in row.items()})
                stream.write(tf.train.Example(features=features).SerializeToString())

def index(folder, out):
    try:
        tfrecords.write_index(Path(folder), Path(out))
    except DatasetError as error:
        return str(error)

while True:
    name, *arguments = pickle.load(sys.stdin.buffer)
    pickle.dump({"write": write, "index": index}[name](*arguments), sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""


@pytest.fixture(scope="module")
def helper():
    """TensorFlow in a process of its own, once for all tests: this one forked."""
    with subprocess.Popen([sys.executable, "-c", HELPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:

        def call(*command):
            pickle.dump(command, process.stdin)
            process.stdin.flush()
            return pickle.load(process.stdout)

        yield call
        process.kill()


@pytest.fixture
def records(helper):
    """Write Examples with features as given."""

    def write(files):
        for path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
        helper("write", [(str(path), rows) for path, rows in files.items()])

    return write


def raw(images, labels):
    return [{"image": image.tobytes(), "label": int(label)} for image, label in zip(images, labels, strict=True)]


def png(value, size=4):
    stream = io.BytesIO()
    Image.new("RGB", (size, size), (value, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def place(tmp_path, monkeypatch, helper):
    """A folder for TFRecords."""

    def run(argv, **_):
        error = helper("index", argv[argv.index("--folder") + 1], argv[argv.index("--out") + 1])
        return subprocess.CompletedProcess(argv, 1 if error else 0, "", f"error: {error}")

    monkeypatch.setattr(tfrecords, "INDEXES", tmp_path / "indexes")
    monkeypatch.setattr(tfrecords, "subprocess", SimpleNamespace(run=run))
    return tmp_path / "set"


def test_image_shards_are_published_with_their_validation(place, records, tmp_path):
    def rows(*pairs):
        return [{"image/encoded": png(value), "image/class/label": label} for value, label in pairs]

    records(
        {
            place / "train-00000-of-00002.tfrecord": rows((1, 0), (2, 1)),
            place / "train-00001-of-00002.tfrecord": rows((3, 1)),
            place / "validation.tfrecord": rows((4, 0)),
            place / "test.tfrecord": rows((5, 0), (5, 1)),
        }
    )
    assert registry.detect(str(place)) == {"source": "tfrecords", "path": str(place)}
    source = tfrecords.TFRecords(str(place))
    listing = source.scan()
    assert (listing.shape, listing.held_out, listing.classes) == (None, 1, ["0", "1"])
    assert listing.labels == {"train": [0, 0, 1, 1], "test": [0, 1]}
    assert [source.read("train", index) for index in range(4)] == [png(4), png(1), png(2), png(3)]
    made = publish.publish(source, tmp_path / "packs", False, quiet)
    assert (made.held_out, made.validation_order[0], sorted(made.validation_order)) == (1, 0, [0, 1, 2, 3])
    sizes = schedule.counts(configs.Config(), 2, 4, made.held_out)
    assert (sizes.train_images, sizes.validation_images) == (3, 1)


def test_raw_pixels_by_channels_come_out_by_rows(place, records, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    records({place / "train.tfrecords": raw(pixels[:2], (0, 1)), place / "eval.tfrecords": raw(pixels[2:], (0, 1))})
    listing = tfrecords.TFRecords(str(place / "train.tfrecords")).scan()
    assert (listing.shape, listing.held_out) == ((32, 32, 3), None)
    publish.publish(tfrecords.TFRecords(str(place)), tmp_path / "packs", False, quiet)
    (folder,) = (path.parent for path in (tmp_path / "packs").glob("*/manifest.json"))
    _, images = open_images(Published(folder, sha256_file(folder / "manifest.json")), tmp_path / "caches", (32, 32, 3), 100, quiet)
    assert (images["test"].pixels(np.array([0, 1])) == pixels[2:].transpose(0, 2, 3, 1)).all()


@pytest.fixture
def both(place, records):
    """Write the same records for training and testing, and perhaps the file beside them; the source."""

    def write(rows, about=None):
        records(dict.fromkeys((place / "train.tfrecord", place / "test.tfrecord"), rows))
        if about is not None:
            (place / "dataset.json").write_text(about if isinstance(about, str) else json.dumps(about))
        return tfrecords.TFRecords(str(place))

    return write


def test_sides_and_classes_come_from_records_or_beside(both):
    """Sides and classes are taken from records and from the file beside them."""
    rows = [{"image_raw": bytes(range(24)), "label": label, "height": 2, "width": 4, "depth": 3} for label in (0, 1)]
    listing = both(rows, {"classes": ["cat", "dog"]}).scan()
    assert (listing.shape, listing.classes) == ((2, 4, 3), ["cat", "dog"])


@pytest.mark.parametrize(
    ("sides", "about"),
    [
        ({"height": 32, "width": 32, "depth": 3}, {"layout": "CHW"}),
        ({}, {"layout": "CHW"}),
        ({}, {}),
        ({}, {"shape": [3, 32, 32], "layout": "CHW"}),
        ({}, {"layout": "HWC"}),
        ({"height": 32, "width": 32, "depth": 3}, {}),
    ],
)
def test_layout_of_raw_pixels_is_given_one(sides, about, both):
    pixels = np.random.default_rng(0).integers(0, 256, 3072, dtype=np.uint8)
    source = both([{"image": pixels.tobytes(), "label": label, **sides} for label in (0, 1)], about)
    assert source.scan().shape == (32, 32, 3)
    channels_first = about.get("layout") == "CHW" or not (sides or about)
    image = pixels.reshape(3, 32, 32).transpose(1, 2, 0) if channels_first else pixels.reshape(32, 32, 3)
    assert source.read("test", 1) == image.tobytes()


def test_the_index_is_kept_until_a_file_changes(place, records, both, monkeypatch):
    before = both(blank(3072)).scan()
    with monkeypatch.context() as patched:
        patched.setattr(tfrecords, "subprocess", None)
        assert tfrecords.TFRecords(str(place)).scan() == before
    records({place / "train.tfrecord": blank(3072, (0, 1, 1))})
    assert len(tfrecords.TFRecords(str(place)).scan().files["train"]) == 3


def blank(size, labels=(0, 1), **sides):
    """Raw images of that many bytes."""
    return [{"image": bytes(size), "label": label, **sides} for label in labels]


SIDES = {"height": 2, "width": 4, "depth": 3}


@pytest.mark.parametrize(
    ("rows", "about", "wrong"),
    [
        ([{"picture": b"x", "label": 0}], None, "record 0 has no feature `image` (bytes) or `label` (int64); it has: label, picture"),
        (blank(3, (0,)) + blank(2, (1,)), None, "record 1 has an image of 2 bytes, the first one 3 raw ones; all must be alike"),
        ([{"image": png(1), "label": 0}, *blank(2)], None, "record 1 is not a JPEG, PNG, BMP or GIF, but the first one is"),
        (blank(3), None, "its images are 3 raw bytes, of unknown shape; give shape and layout in"),
        (blank(3), {"shape": [2, 2, 3]}, "with shape [2, 2, 3] and layout HWC; give shape and layout in"),
        (blank(784), {"classes": ["only"]}, "labels must run from 0 to 0"),
        (blank(784, (0, 10**9 + 7)), None, "labels must run from 0 to 1000000007 without gaps, and be at least two; found 0, 1000000007"),
        (blank(16, height=2, width=2, depth=4), None, "its raw images have 4 channels ([2, 2, 4], HWC); it must be 1 (grey) or 3"),
        (blank(12), {"shape": [2, 3, 2], "layout": "CHW"}, "its raw images have 2 channels ([2, 3, 2], CHW)"),
        (blank(784), {"layout": "WHC"}, "dataset.json: layout WHC; raw pixels"),
        (blank(784), {"classes": 2}, "dataset.json: classes is 2; it must be a list of texts or whole numbers"),
        (blank(784), {"shape": [28, 28.0, 1]}, "dataset.json: shape is [28, 28.0, 1]; it must be a list of whole numbers"),
        *((blank(784), text, "dataset.json: not a JSON object: ") for text in ("[" * 100_000, '{"a": ' * 100_000, '["classes"]', "{")),
        ([], None, "train.tfrecord: no records"),
        (
            blank(24, (0,), **SIDES) + blank(24, (1,), **SIDES | {"width": 2, "height": 4}),
            None,
            "record 1 has sides [4, 2, 3], the first one",
        ),
        (blank(24, height=b"2", width=b"4", depth=b"3"), None, "its images are 24 raw bytes, of unknown shape"),
    ],
)
def test_records_that_cant_be_used_are_refused(rows, about, wrong, both):
    with pytest.raises(DatasetError, match=re.escape(wrong)):
        both(rows, about).scan()


def test_raw_pixels_may_begin_like_a_bitmap(both):
    assert both([{"image": bytes(784), "label": 0}, {"image": b"BM" + bytes(782), "label": 1}]).scan().shape == (28, 28, 1)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda data: data[:-10], "truncated or damaged after byte 3,1"),
        (gzip.compress, r"its records are compressed \(GZIP\). Fix: write them without"),
        (zlib.compress, r"its records are compressed \(ZLIB\). Fix: write them without"),
    ],
)
def test_a_damaged_or_compressed_file_is_refused(change, wrong, both, place):
    source = both(blank(3072))
    (place / "train.tfrecord").write_bytes(change((place / "train.tfrecord").read_bytes()))
    with pytest.raises(DatasetError, match=f"train.tfrecord: {wrong}"):
        source.scan()


def test_a_split_that_is_missing_is_refused(place, records):
    records({place / "train.tfrecord": blank(3072)})
    with pytest.raises(DatasetError, match="there is no test in it; it needs TFRecord files named"):
        tfrecords.TFRecords(str(place)).scan()
