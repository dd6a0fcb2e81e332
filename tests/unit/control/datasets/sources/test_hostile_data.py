"""Data that would fill the memory, the disk or the screen: small files that become large, lines without end, columns without number."""

import gzip
import itertools
import pickle
import resource
import struct
import tarfile
import tracemalloc

import numpy as np
import pytest

from control.datasets.listing import checked_examples, kept_columns
from control.datasets.listing.registry import open_source
from control.datasets.publishing import image_check
from control.datasets.sources import cifar10, csv_rows, idx, parquet_rows, tfrecords
from control.datasets.sources.folder import Folder
from trainer.common.errors import DatasetError, LockstepError
from trainer.common.suggest import nearest
from trainer.data.columns import allow_open

MANY = 200_000


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kept_columns, "KEPT", tmp_path / "columns")
    return tmp_path


def refusal(work, *arguments):
    """The message of a refusal, which is one short line."""
    with pytest.raises(LockstepError) as caught:
        work(*arguments)
    assert len(str(caught.value)) < 700
    assert "\n" not in str(caught.value)
    return str(caught.value)


def scan(path, target="y", features=None):
    return open_source("columns", str(path), target, features).scan()


def peak(work):
    """Bytes that Python had at most for a call."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("before", [b"", b"a,y\n1,2\n", b'a,y\n1,2\n"' + b'\n","' * 2**15])
def test_line_without_end_is_not_read(before, place, monkeypatch):
    """Neither is a row of many lines."""
    monkeypatch.setattr(csv_rows, "LONGEST_ROW", 2**16)
    path = place / "t.csv"
    path.write_bytes(before)
    with path.open("r+b") as stream:
        stream.truncate(2**28)
    line = min(before.count(b"\n") + 1, 3)
    messages = []
    assert peak(lambda: messages.append(refusal(scan, path))) < 2**24
    assert messages == [
        f"{path}, line {line}: a row of more than 65,536 characters, the most that is read. "
        "Fix: end each row with a line break, and close each quotation mark"
    ]


def wide(place, rows):
    path = place / "wide.csv"
    path.write_text("\n".join([",".join(f"c{number}" for number in range(MANY)), *[",".join("0123456789" * (MANY // 10))] * rows]) + "\n")
    return path


def test_table_of_too_many_columns_is_refused(place):
    """It is refused by its header; the rows are not read."""
    assert refusal(scan, wide(place, 0), "c0") == (
        "dataset=wide.csv has 199,999 columns for a model; with the target, at most 4,096 are read. Fix: name those that it needs, as in "
        "-e 'set=data.features=[c1,c2]', or put columns of one type into one array [examples, columns] in a function: "
        "-e dataset=FILE.py:FUNCTION"
    )


def test_some_of_many_columns_are_read(place):
    table = scan(wide(place, 12), "c0", ["c1", "c199999"]).table
    assert ([str(leaf) for leaf in table.spec.leaves], table.train + table.test) == (["x.c1 int64", "x.c199999 int64", "y int64"], 12)


@pytest.mark.parametrize(("limit", "value"), [("BLOCK_VALUES", 20), ("BLOCK_CHARACTERS", 40), ("ROWS", 10)])
def test_blocks_of_rows_are_bounded(limit, value, place, monkeypatch):
    monkeypatch.setattr(csv_rows, limit, value)
    (place / "t.csv").write_text("a,y\n" + "1,2\n" * 25)
    blocks = list(csv_rows.blocks(place / "t.csv", ["a", "y"]))
    assert [(first, len(table["a"])) for first, table in blocks] == [(1, 10), (11, 10), (21, 5)]


def test_name_as_long_as_a_file_is_refused(place):
    path = place / "t.csv"
    path.write_text(f"a,{'n' * 2**20}\n1,2\n")
    assert "its first line has a name of 1,048,576 characters for column 2, at most 1,000 are read" in refusal(scan, path, None)
    # Noticed before the rows, which are wrong, too.
    path.write_text("a,tips\n1,2,3\n")
    assert refusal(scan, path, "tip").startswith("data.target=tip: dataset=t.csv has no such column (did you mean tips?)")


def test_nearest_name_is_looked_for_among_some():
    assert nearest("c_7", map("c{}".format, itertools.count())) == " (did you mean c7?)"


def test_slices_are_as_large_as_strings_are(monkeypatch):
    monkeypatch.setattr(checked_examples, "SLICE_BYTES", 1000)
    checked = checked_examples.ExampleChecker("dataset=t")
    texts = np.array(["x" * 600] * 3 + ["x"] * 3 + ["x" * 5000], object)
    assert [len(values[0]) for values in checked.slices({"a": texts}, "train", "the data")] == [1, 1, 4, 1]


def test_more_files_may_be_open_if_needed(monkeypatch):
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 20_000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, given: limits.append(given))
    allow_open(100)
    assert limits == []
    allow_open(16_000)
    assert limits == [(16_512, 20_000)]
    assert refusal(allow_open, 20_000).startswith(
        "columns of strings or of varying length take 20,000 files, and this system lets a process"
    )


def pyarrow():
    return pytest.importorskip("pyarrow", reason="pyarrow is not installed: nothing but Parquet needs it")


def parquet(place, contents, **how):
    arrow = pyarrow()
    from pyarrow import parquet

    path = place / "t.parquet"
    parquet.write_table(arrow.table(contents), path, compression="zstd", **how)
    return path


def test_parquet_bomb_of_repeated_strings(place):
    """A file of a few kilobytes with 20 GB of strings: equal ones are one in memory, and none is written."""
    arrow, rows = pyarrow(), 20_000
    repeated = arrow.DictionaryArray.from_arrays(arrow.array([0] * rows, "int32"), arrow.array(["x" * 2**20]))
    path = parquet(place, {"a": repeated, "y": [0, 1] * (rows // 2)}, store_schema=False)
    messages = []
    assert peak(lambda: messages.append(refusal(scan, path))) < 2**26
    assert messages == [
        f"{path}: its {path.stat().st_size:,} bytes become more than 1,073,741,824; at most 1,000 times a file's size, or 1,073,741,824 "
        "bytes, are read. Fix: save the table as CSV, or name the columns that are needed (-e set=data.features=[...])"
    ]
    assert not list(kept_columns.KEPT.iterdir())


def test_parquet_row_that_would_fill_memory(place, monkeypatch):
    arrow = pyarrow()
    monkeypatch.setattr(parquet_rows, "MOST_MEMORY", 2**26)
    zeros = arrow.ListArray.from_arrays(arrow.array([0, 2**25, 2**25 + 1], "int32"), arrow.array(np.zeros(2**25 + 1)))
    path, before = parquet(place, {"a": zeros, "y": [0, 1]}), resource.getrlimit(resource.RLIMIT_DATA)
    assert refusal(scan, path).startswith(f"{path}: its rows from 1 on need more than 67,108,864 bytes of memory at once")
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_parquet_strings_may_be_missing(place):
    path = parquet(place, {"a": ["x", None, "z", ""] * 9, "y": [0, 1, 2, 3] * 9})
    table = next(parquet_rows.reader([path], None)(path))[1]
    assert table["a"].tolist() == ["x", None, "z", ""] * 9


def test_parquet_of_too_many_columns_is_refused(place):
    path = parquet(place, {f"c{number}": [1] for number in range(5_000)})
    assert refusal(scan, path, "c0").startswith("dataset=t.parquet has 4,999 columns for a model; with the target, at most 4,096 are read")


def test_packed_idx_bomb_is_not_unpacked(place):
    for stem, count in (("train", 2**20), ("t10k", 1)):
        with gzip.open(place / f"{stem}-images-idx3-ubyte.gz", "wb", 9) as stream:
            stream.write(bytes([0, 0, 8, 3]) + struct.pack(">3I", count, 28, 28) + bytes(2**20))
    path, messages = place / "train-images-idx3-ubyte.gz", []
    (place / "train-labels-idx1-ubyte").touch()
    assert peak(lambda: messages.append(refusal(idx.Idx(str(place)).scan))) < 2**20
    assert messages == [
        f"{path}: {path.stat().st_size:,} bytes that become 822,083,600 by its header; at most 100 times as many, or 268,435,456, are "
        "unpacked. Fix, if it is what you expect: gunzip it"
    ]


@pytest.mark.parametrize(
    ("length", "left", "why"),
    [
        (2**61, 96, "truncated or damaged after byte 20: the next record has 2,305,843,009,213,693,952 bytes by its header, and 96 are"),
        (2**31, 2**31, "the record after byte 20 has 2,147,483,648 bytes; at most 1,073,741,824 are read. Fix: one image in each record"),
    ],
)
def test_record_longer_than_any_is_refused(length, left, why, place):
    """TensorFlow takes memory for as many bytes as a record's header says."""
    path = place / "train.tfrecord"
    with path.open("wb") as stream:
        stream.write(struct.pack("<QI", 4, 0) + bytes(4 + 4) + struct.pack("<QI", length, 0))
        stream.truncate(20 + 12 + left + 4)
    assert refusal(lambda: list(tfrecords.read_records(path))).startswith(f"{path}: {why}")


def test_record_of_many_features_is_short():
    features = {f"f{number:06d}": None for number in range(MANY)}
    with pytest.raises(DatasetError, match=r"f000000, f000001, .*f000019, 199,980 more$"):
        tfrecords._fields(features, "train.tfrecord", 0)


def test_folder_of_many_classes_is_short(make_folder):
    root = make_folder(train={"cat": 1, "dog": 1}, test={"cat": 1, "dog": 1})
    for number in range(2_000):
        (root / "train" / f"n{number:04d}").mkdir()
    assert refusal(Folder(str(root)).scan).endswith(
        "only in train/: " + ", ".join(f"n{number:04d}" for number in range(20)) + ", 1,980 more"
    )


def test_image_larger_than_any_is_not_read(make_folder, place):
    """A sparse file costs its maker nothing."""
    source = Folder(str(make_folder()))
    with (source.path / "train" / "cat" / "large.jpg").open("wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(DatasetError, match=r"train/cat/large.jpg: it has 1,099,511,627,776 bytes; at most 1,073,741,824 are read"):
        image_check.ImageCheck(source, source.scan(), place).readable(False, lambda *_: None)


def test_archive_of_many_members_is_refused(place):
    path = place / "a.tar.gz"
    with tarfile.open(path, "w:gz") as packed:
        for number in range(1_000):
            packed.addfile(tarfile.TarInfo(f"cifar-10-batches-py/{number}"))
    assert refusal(read_archive, path) == f"{path}: it has more than 100 members; CIFAR-10 archives have ten. Fix: fetch the archive again"


def read_archive(path):
    return cifar10.read_splits(path, "any" if path.is_file() else None, lambda *_: None)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_header_that_would_fill_memory_is_refused(kind, place):
    """A member that belongs to another's header is read whole before anybody sees it."""
    header = tarfile.TarInfo("././@PaxHeader")
    header.type, header.size = kind, 2**31
    path = place / "a.tar.gz"
    path.write_bytes(gzip.compress(header.tobuf(tarfile.USTAR_FORMAT) + bytes(2**20)))
    unpacks = "it unpacks to more than 536,870,912 bytes, which CIFAR-10 has not. Fix: fetch the archive again"
    assert refusal(read_archive, path) == f"{path}: {unpacks}"


NESTED = [0]
for _ in range(40):
    NESTED = [NESTED, NESTED]


def doubled(times):
    """A pickle that encodes a megabyte as hexadecimal text, again and again."""
    text = b"B" + struct.pack("<I", 2**20) + bytes(2**20)
    return b"\x80\x02" + b"c_codecs\nencode\n" * times + text + (b"X\x03\0\0\0hex\x86R") * times + b"."


ALLOCATED = b"\x80\x02}(B\x04\0\0\0datacnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n\x8a\x07" + (2**48).to_bytes(7, "little")


NO_BATCH = "its data are no bytes, or its labels no list of whole numbers"


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (doubled(12), "it encodes as 'hex', which no CIFAR-10 batch does"),
        (ALLOCATED + b"\x85B\x01\0\0\0btRu.", "Unable to allocate 256. TiB for an array"),
        (pickle.dumps({b"data": NESTED, b"labels": []}, 2), NO_BATCH),
        (pickle.dumps({b"data": np.zeros(3072, np.uint8), b"labels": NESTED}, 2), NO_BATCH),
    ],
)
def test_pickle_that_would_fill_memory_is_refused(batch, why, place):
    (place / "data_batch_1").write_bytes(batch)
    assert f"{place}: data_batch_1: truncated or damaged: {why}" in refusal(read_archive, place)
