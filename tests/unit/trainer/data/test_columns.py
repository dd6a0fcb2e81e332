"""Columns on a node: what is written is gathered, in any order; what somebody else wrote is refused."""

import copy
import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from control.datasets.listing.column_writer import Writer
from control.datasets.listing.specs import checked_table
from control.datasets.publishing import publish as publishing
from tests.unit.samples import flip_a_bit
from trainer.common.errors import DatasetError
from trainer.common.files import sha256_file
from trainer.data import columns, manifest
from trainer.data.columns import Columns, map_at_random, open_columns
from trainer.data.manifest import Manifest, Published, Records, Table
from trainer.data.spec import Leaf, Spec, of_images

LEAVES = (
    Leaf("x.age", "float32", ()),
    Leaf("x.image", "uint8", (2, 3)),
    Leaf("x.title", "string", ()),
    Leaf("x.tags", "string", (None,)),
    Leaf("x.words", "int32", (None,)),
    Leaf("x.steps", "float16", (None, 2)),
    Leaf("x.picture", "uint8", (None, None, 1)),
    Leaf("x.pair", "string", (2,)),
    Leaf("y", "int64", ()),
)
NAMES = [leaf.name[2:] for leaf in LEAVES[:-1]]
SPEC = Spec([{name: number for number, name in enumerate(NAMES)}, 8], LEAVES)


def values_of(count, first=0):
    random = np.random.default_rng(first)
    texts = [f"häuser {number}" for number in range(first, first + count)]
    return [
        np.arange(first, first + count, dtype=np.float32),
        random.integers(0, 256, (count, 2, 3)).astype(np.uint8),
        np.array(texts, object),
        [[f"t{k}" for k in range(number % 3)] for number in range(first, first + count)],
        [np.arange(number % 4) for number in range(first, first + count)],
        [np.full((number % 3, 2), number) for number in range(first, first + count)],
        [np.full((number % 2 + 1, number % 3, 1), number) for number in range(first, first + count)],
        np.array([[text, ""] for text in texts], object),
        np.arange(first, first + count) * 2**40,
    ]


def publish(folder, spec=SPEC, batches=((4, 0), (3, 4)), values=values_of, **changes):
    """Write both splits and a manifest; the reference to it."""
    folder.mkdir(exist_ok=True)
    for split in ("train", "test"):
        with Writer(folder, spec, split) as writer:
            for count, first in batches:
                writer.append(values(count, first))
    sums = {name: sha256_file(folder / name) for name in columns.file_names(spec)}
    empty = Records([], [], [])
    table = Table(spec, writer.count, writer.count)
    made = Manifest("d" * 64, [], None, [], sums, empty, empty, 0, [], table=table)
    saved = publishing._save(dataclasses.replace(made, **changes), folder)
    return Published(folder, saved.sha256)


def opened(tmp_path, **given):
    return open_columns(publish(tmp_path / "published", **given), tmp_path / "caches", lambda *_: None)[1]["train"]


def test_what_was_written_is_gathered_in_any_order(tmp_path):
    train = opened(tmp_path)
    whole = values_of(4)
    assert len(train) == 7
    x, y = train.gather(np.array([5, 0, 3, 3]))
    assert y.tolist() == [5 * 2**40, 0, 3 * 2**40, 3 * 2**40]
    assert (y.dtype, x["age"].dtype, x["steps"].dtype) == (np.int64, np.float32, np.float16)
    assert x["age"].tolist() == [5, 0, 3, 3]
    assert (x["image"][1:3] == whole[1][[0, 3]]).all()
    assert x["title"].tolist() == [f"häuser {number}".encode() for number in (5, 0, 3, 3)]
    assert x["pair"].tolist() == [[f"häuser {number}".encode(), b""] for number in (5, 0, 3, 3)]
    assert list(x) == NAMES


def test_what_varies_is_padded_to_longest_of_batch(tmp_path):
    train = opened(tmp_path)
    x, _ = train.gather(np.array([3, 1]))
    assert x["words"].tolist() == [[0, 1, 2], [0, 0, 0]]
    assert x["tags"].tolist() == [[b""], [b"t0"]]
    assert (x["steps"].shape, x["steps"][1].tolist()) == ((2, 1, 2), [[1, 1]])
    assert x["picture"].shape == (2, 2, 1, 1)
    assert x["picture"][1].ravel().tolist() == [1, 1]
    assert train.gather(np.array([0]))[0]["words"].shape == (1, 0)
    assert train.gather(np.array([], int))[0]["words"].shape == (0, 0)
    assert train.lengths().tolist() == [0, 2, 4, 3, 2, 4, 2]


def test_a_gathered_batch_is_a_copy(tmp_path):
    train = opened(tmp_path)
    x, y = train.gather(np.arange(7))
    for array in (*x.values(), y):
        array[:] = array[::-1].copy()
    assert train.gather(np.arange(7))[1].tolist() == [number * 2**40 for number in range(7)]


def test_only_strings_and_empty_ones(tmp_path):
    spec = Spec([0], (Leaf("x", "string", (None,)),))
    train = opened(tmp_path, spec=spec, values=lambda count, _: [[[]] * count])
    assert train.gather(np.arange(3))[0].shape == (3, 0)


def test_threads_gather_at_once(tmp_path):
    train = opened(tmp_path)
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda index: train.gather(np.array([index]))[1].item() >> 40, [*range(7)] * 50))
    assert results == [*range(7)] * 50


def test_a_record_of_thousands_of_columns(tmp_path):
    spec = Spec([list(range(3000))], tuple(Leaf(f"x[{number}]", "float32", ()) for number in range(3000)))
    train = opened(tmp_path, spec=spec, values=lambda count, first: [np.arange(first, first + count)] * 3000)
    assert [array.tolist() for array in train.gather(np.array([6, 2]))[0]] == [[6, 2]] * 3000


def test_copy_is_made_once_unless_touched(tmp_path, capsys):
    published, calls = publish(tmp_path / "published"), []
    for _ in range(2):
        open_columns(published, tmp_path / "caches", lambda *progress: calls.append(progress))
    assert calls[-1] == (14, 14)
    assert len(calls) == len(columns.file_names(SPEC))
    (folder,) = (path for path in (tmp_path / "caches").iterdir() if path.is_dir())
    flip_a_bit(folder / "train-rows.npy")
    _, splits = open_columns(published, tmp_path / "caches", lambda *_: None)
    assert "it is built again" in capsys.readouterr().out
    assert splits["train"].gather(np.arange(7))[1].tolist() == [number * 2**40 for number in range(7)]


@pytest.mark.parametrize("name", columns.file_names(SPEC))
def test_changed_file_is_refused_and_nothing_is_kept(name, tmp_path):
    published = publish(tmp_path / "published")
    flip_a_bit(tmp_path / "published" / name)
    with pytest.raises(DatasetError, match=rf"{name} has SHA-256 .* was published"):
        open_columns(published, tmp_path / "caches", lambda *_: None)
    assert [path.name for path in (tmp_path / "caches").iterdir() if path.is_dir()] == []


def test_missing_file_and_changed_manifest_are_refused(tmp_path):
    published = publish(tmp_path / "published")
    (tmp_path / "published" / "test-rows.npy").unlink()
    with pytest.raises(DatasetError, match=r"test-rows\.npy: can't be read: No such file or directory"):
        open_columns(published, tmp_path / "caches", lambda *_: None)
    flip_a_bit(tmp_path / "published" / "manifest.json")
    with pytest.raises(DatasetError, match=r"manifest.json has SHA-256"):
        open_columns(published, tmp_path / "caches", lambda *_: None)


def attacked(folder, change):
    """Change the files of a dataset, and publish them as if they were right: what the control node's own copy would have to be."""
    published = publish(folder)
    raw = json.loads((folder / "manifest.json").read_bytes())
    change(folder, raw)
    raw["sums"] = {name: sha256_file(folder / name) if (folder / name).is_file() else value for name, value in raw["sums"].items()}
    (folder / "manifest.json").write_text(json.dumps(raw))
    return dataclasses.replace(published, sha256=sha256_file(folder / "manifest.json"))


def saved(name, change):
    """Replace an array by what `change` makes of it."""

    def act(folder, _):
        array = change(np.load(folder / name, allow_pickle=True))
        with (folder / name).open("wb") as stream:
            np.lib.format.write_array(stream, array, allow_pickle=True)

    return act


def at(array, index, value):
    array[index] = value
    return array


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (saved("train-rows.npy", lambda rows: rows[:-1]), r"train-rows.npy: its array is not \[7\]"),
        (saved("train-rows.npy", lambda rows: rows["0"]), r"train-rows.npy: its array is not \[7\]"),
        (saved("train-rows.npy", lambda rows: np.array([print] * 7)), "train-rows.npy: not an array in NumPy's format"),
        (lambda folder, _: (folder / "train-rows.npy").write_bytes(b"PK\x03\x04"), "not an array in NumPy's format"),
        (lambda folder, _: (folder / "train-rows.npy").write_bytes(b""), "not an array in NumPy's format"),
        (saved("train-0004-starts.npy", lambda starts: at(starts, 3, 10**15)), "train-0004-starts.npy: its offsets lead outside"),
        (saved("train-0004-starts.npy", lambda starts: at(starts, -1, 10**15)), "train-0004-starts.npy: its offsets lead outside"),
        (saved("train-0004-starts.npy", lambda starts: at(starts, 0, -5)), "train-0004-starts.npy: its offsets lead outside"),
        (saved("train-0005-starts.npy", lambda starts: at(starts, 2, 1)), "an example's shape does not fit x.steps"),
        (saved("test-0006-shapes.npy", lambda shapes: at(shapes, (1, 0), 2**40)), "an example's shape does not fit x.picture"),
        (saved("test-0006-shapes.npy", lambda shapes: -shapes), "an example's shape does not fit x.picture"),
        (saved("train-0002-ends.npy", lambda ends: ends[::-1].copy()), "train-0002-ends.npy: its offsets lead outside"),
        (saved("train-0002-text.npy", lambda text: text[:-3]), "train-0002-ends.npy: its offsets lead outside"),
        (lambda _, raw: raw["sums"].pop("train-rows.npy"), "its files are not those of its spec"),
        (lambda _, raw: raw["sums"].update({"../../etc/passwd": "0"}), "its files are not those of its spec"),
        (lambda _, raw: raw["table"].update(train=8), "its array is not"),
    ],
)
def test_a_hostile_dataset_is_refused(change, message, tmp_path):
    published = attacked(tmp_path / "published", change)
    with pytest.raises(DatasetError, match=message):
        open_columns(published, tmp_path / "caches", lambda *_: None)
    assert not list(tmp_path.glob("caches/*-columns"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.update(train=-1), "train must be a whole number from 0"),
        (lambda raw: raw.update(train=True), "train must be a whole number from 0"),
        (lambda raw: raw.pop("test"), "table needs spec, train and test"),
        (lambda raw: raw["spec"].update(structure=[0]), "structure must name each of the 9 leaves once"),
    ],
)
def test_what_is_no_table_is_refused(change, message):
    raw = Table(SPEC, 7, 7).to_json()
    assert checked_table(raw) == Table(SPEC, 7, 7)
    raw = copy.deepcopy(raw)
    change(raw)
    with pytest.raises(DatasetError, match=message):
        checked_table(raw)


def test_table_is_no_dataset_of_images_or_reverse(tmp_path):
    """A table that is no dataset of images and the other way round."""
    from trainer.data.image_cache import open_images

    with pytest.raises(DatasetError, match="columns are published there, not images"):
        open_images(publish(tmp_path / "published"), tmp_path / "caches", (2, 3, 1), 10, lambda *_: None)
    images = Manifest("d", ["a", "b"], [1, 1, 1], [], {}, Records([], [], [0]), Records([], [], [0]), 0, [])
    place = Published(tmp_path, publishing._save(images, tmp_path).sha256)
    with pytest.raises(DatasetError, match="images are published there, not columns"):
        open_columns(place, tmp_path / "caches", lambda *_: None)
    assert manifest.load(place).spec((4, 5, 3)) == of_images((4, 5, 3))


def test_order_is_permutation_with_held_out_examples_first(tmp_path):
    loaded = manifest.load(publish(tmp_path / "published", held_out=2))
    assert sorted(loaded.order.tolist()) == [*range(7)]
    assert set(loaded.order[:2].tolist()) == {5, 6}
    assert (loaded.count("train"), loaded.count("test"), loaded.spec((1, 1, 1))) == (7, 7, SPEC)
    other = manifest.load(publish(tmp_path / "published", split_seed=1))
    assert other.order.tolist() != loaded.order.tolist()


def test_row_too_large_for_record_is_refused():
    with pytest.raises(DatasetError, match="an example has 8,589,934,592 bytes in columns of fixed size"):
        Spec([0], (Leaf("x", "float32", (2**31,)),)).row_dtype()


def test_file_larger_than_memory_is_mapped(tmp_path, monkeypatch):
    """A file of more examples than memory is mapped not read."""
    at_random = []
    monkeypatch.setattr(columns, "map_at_random", lambda array: at_random.append(array) or map_at_random(array))
    spec = Spec([0], (Leaf("x", "uint8", (2**20,)),))
    with Writer(tmp_path, spec, "train") as writer:
        writer.append([np.ones((1, 2**20), np.uint8)])
    count = 2**20
    header = {"descr": spec.row_dtype().descr, "fortran_order": False, "shape": (count,)}
    with (tmp_path / "train-rows.npy").open("r+b") as stream:
        np.lib.format.write_array_header_2_0(stream, header)
        stream.truncate(stream.tell() + count * 2**20)
    x = Columns(tmp_path, spec, "train", count).gather(np.array([count - 1, 0]))[0]
    assert x.sum(axis=1).tolist() == [0, 2**20]
    assert len(at_random) == 1
