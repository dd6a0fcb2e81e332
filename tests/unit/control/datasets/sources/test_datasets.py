"""Where images come from: class folders, MNIST-format files, the example dataset, and telling them apart."""

import gzip
import os
import shutil
import subprocess

import numpy as np
import pytest

from control.datasets.listing.registry import detect, open_source
from control.datasets.publishing.image_check import ImageCheck
from control.datasets.sources import fashion_mnist, idx
from control.datasets.sources.folder import LAYOUT, Folder
from control.datasets.sources.idx import Idx
from tests.unit.samples import idx_bytes, image_bytes
from trainer.common.errors import DatasetError


def refusal(function, *arguments):
    with pytest.raises(DatasetError) as caught:
        function(*arguments)
    return str(caught.value)


def checked(source, packs):
    """What a plan does with a dataset that is not published yet."""
    return ImageCheck(source, source.scan(), packs).readable(False, lambda *_: None)


# --- folder


def test_folder_lists_classes_and_files_sorted_by_name(make_folder):
    classes = {"über uns": 2, "Käse (alt)": 3}
    root = make_folder("Ärger und Käse", train=classes, test=dict.fromkeys(classes, 1))
    for name in ("Thumbs.db", "notes.txt", ".hidden.png", "a.JPEG", "b.Bmp", "c.gif"):
        (root / "train" / "Käse (alt)" / name).write_bytes(b"x")
    for folder in ("train/.git", "train/Käse (alt)/more"):
        (root / folder).mkdir()
    (root / "train" / "readme.md").write_text("x")
    (root / "train" / "Käse (alt)" / "lost.png").symlink_to(root / "nowhere.png")
    source = Folder(str(root))
    listing = source.scan()
    assert (listing.name, listing.classes, listing.shape) == ("Ärger und Käse", ["Käse (alt)", "über uns"], None)
    names = [*("0.png", "1.png", "2.png", "a.JPEG", "b.Bmp", "c.gif")]
    assert listing.files["train"] == [*(f"train/Käse (alt)/{name}" for name in names), "train/über uns/0.png", "train/über uns/1.png"]
    assert listing.labels == {"train": [0] * 6 + [1, 1], "test": [0, 1]}
    assert sorted(listing.ignored) == [f"train/Käse (alt)/{name}" for name in ("Thumbs.db", "lost.png", "more", "notes.txt")]
    assert [source.read("test", index) for index in (0, 1)] == [(root / name).read_bytes() for name in listing.files["test"]]


@pytest.mark.parametrize("place", ["file", "class", "dataset"])
def test_folder_refuses_names_that_are_not_utf8(place, make_folder):
    root, name = make_folder(), os.fsdecode(b"K\xe4se")
    if place == "file":
        shown = f"train/cat/{name}.png"
        (root / shown).write_bytes(image_bytes(50))
    elif place == "class":
        shown = f"train/{name}"
        (root / shown).mkdir()
    else:
        root = root.rename(root.with_name(name))
        shown = str(root)
    message = refusal(Folder(str(root)).scan)
    assert message == f"dataset {str(root)!r}: the name {shown!r} is not UTF-8; rename it"
    assert message.encode()


def test_folder_fingerprint_changes_with_file_and_only_then(make_folder):
    root = make_folder()
    before = Folder(str(root)).scan().fingerprint
    assert Folder(str(root)).scan().fingerprint == before
    (root / "train" / "cat" / "0.png").write_bytes(image_bytes(99))
    assert Folder(str(root)).scan().fingerprint != before


def made(*folders):
    return lambda root: [(root / folder).mkdir(parents=True) for folder in folders]


def without(*folders):
    return lambda root: [shutil.rmtree(root / folder) for folder in folders]


def renamed(**names):
    return lambda root: [(root / old).rename(root / new) for old, new in names.items()]


def emptied(folder):
    return lambda root: [file.rename(file.with_suffix(".txt")) for file in (root / folder).iterdir()]


CAT = {"cat": 1}


@pytest.mark.parametrize(
    ("train", "test", "change", "message"),
    [
        *(
            (None, None, renamed(train="cats", test=left), f"there is no train/ in it; {LAYOUT}")
            for left in ("test", "Testing", "val", "training")
        ),
        (None, None, made("val", "validation"), "both val/ and validation/ are in it; remove or rename one of them"),
        (None, None, made("val/emu"), "train/ and val/ must hold the same classes; only in val/: emu"),
        ({"cat": 10, "dog": 1}, None, without("test"), "class dog has 1 image, and as there is no test/, at least one"),
        (CAT, CAT, made(), "at least two classes are needed, found: cat; "),
        (CAT, CAT, without("train/cat", "test/cat"), "at least two classes are needed, found: none"),
        *((None, None, emptied(f"{split}/dog"), f"class {split}/dog is empty; put images (JPEG, PNG,") for split in ("train", "test")),
        (
            CAT | {"dog": 1, "cow": 1},
            CAT | {"emu": 1, "eel": 1},
            made(),
            "the same classes; only in train/: cow, dog; only in test/: eel, emu",
        ),
    ],
)
def test_folder_that_is_no_dataset_is_refused(train, test, change, message, make_folder):
    root = make_folder(train=train, test=test)
    change(root)
    text = refusal(Folder(str(root)).scan)
    assert text.startswith(f"dataset {root}: ")
    assert message in text


def test_folder_of_one_class_names_the_one_above(make_folder, tmp_path):
    message = refusal(Folder(str(make_folder() / "train" / "cat")).scan)
    assert "its pictures are in no folder of their class; if it is one class, give the folder above; " in message
    assert refusal(Folder(str(tmp_path / "x")).scan).startswith(f"dataset {tmp_path}/x: no such folder; a dataset folder holds train/")


@pytest.mark.parametrize("name", ["val", "validation", "valid"])
def test_folder_with_validation_images_of_its_own(name, make_folder):
    root = make_folder(train={"cat": 3, "dog": 2}, test={"cat": 1, "dog": 1})
    (root / name / "dog").mkdir(parents=True)
    for number in range(2):
        (root / name / "dog" / f"{number}.png").write_bytes(image_bytes(90 + number))
    source = Folder(str(root))
    listing = source.scan()
    assert (listing.held_out, listing.note) == (2, f"2 images in {name}/ are for validation")
    assert listing.files["train"][:3] == [f"{name}/dog/0.png", f"{name}/dog/1.png", "train/cat/0.png"]
    assert listing.labels == {"train": [1, 1, 0, 0, 0, 1, 1], "test": [0, 1]}
    assert source.read("train", 1) == image_bytes(91)


@pytest.mark.parametrize("flat", [True, False])
def test_folder_without_test_images_holds_some_out(flat, make_folder):
    root = make_folder(train={"cat": 10, "dog": 23}, test={"cat": 1, "dog": 1})
    shutil.rmtree(root / "test")
    prefix = "" if flat else "train/"
    if flat:
        for name in ("cat", "dog"):
            (root / "train" / name).rename(root / name)
        (root / "train").rmdir()
    source = Folder(str(root))
    listing = source.scan()
    assert (listing.classes, listing.held_out) == (["cat", "dog"], None)
    assert {split: np.bincount(labels).tolist() for split, labels in listing.labels.items()} == {"train": [8, 18], "test": [2, 5]}
    assert sorted([*listing.files["train"], *listing.files["test"]]) == sorted(
        f"{prefix}{name}/{number}.png" for name, count in (("cat", 10), ("dog", 23)) for number in range(count)
    )
    assert source.read("test", 0) == (root / listing.files["test"][0]).read_bytes()
    assert "there is no test/, so data.test_split=0.2 of each class is held out for testing (7 images" in listing.note
    # An image stays on its side when others come.
    for number in range(100, 105):
        (root / prefix / "cat" / f"{number}.png").write_bytes(image_bytes(number))
    later = Folder(str(root)).scan()
    assert len([name for name in listing.files["test"] if name not in later.files["test"]]) <= 1
    assert Folder(str(root)).scan().files == later.files


@pytest.mark.parametrize(("share", "held"), [(0.01, [1, 1]), (0.1, [1, 2]), (0.5, [5, 12]), (0.99, [9, 22])])
def test_share_of_each_class_is_for_testing(share, held, make_folder):
    """At least one image of a class, and never all."""
    root = make_folder(train={"cat": 10, "dog": 23})
    shutil.rmtree(root / "test")
    listing = open_source("folder", str(root), test_split=share).scan()
    assert np.bincount(listing.labels["test"]).tolist() == held
    assert f"so data.test_split={share} of each class is held out" in listing.note
    assert listing.fingerprint != Folder(str(root)).scan().fingerprint


# --- idx


@pytest.mark.parametrize(("zipped", "separator"), [((), "-"), (("train",), "-"), (("train", "t10k"), ".")])
def test_idx_plain_and_gzipped(zipped, separator, make_idx):
    root = make_idx(zipped=zipped)
    for file in list(root.iterdir()):
        file.rename(root / file.name.replace("-idx", f"{separator}idx"))
    # One of the files stands for their folder.
    for place in (root, next(root.glob("t10k-labels*"))):
        source = Idx(str(place))
        listing = source.scan()
        assert (listing.name, listing.classes, listing.shape) == ("digits", ["0", "1"], (4, 3, 1))
        assert listing.labels == {"train": [0, 1, 0, 1, 1], "test": [1, 0]}
        assert listing.files["test"] == ["test/00000", "test/00001"]
        expected = np.random.default_rng(0).integers(0, 256, (5, 4, 3)).astype(np.uint8)
        assert [source.read("train", index) for index in range(5)] == [image.tobytes() for image in expected]


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_idx_names_a_missing_file(name, make_idx):
    root = make_idx()
    (root / name).unlink()
    message = refusal(Idx(str(root)).scan)
    assert message.startswith(f"dataset {root}: {name} is missing; the source `idx` needs train-images-idx3-ubyte, ")
    assert message.endswith("(each plain or .gz)")


NO_IDX = "not an idx file of unsigned bytes in 1 to 3 dimensions (magic "


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", f"{NO_IDX})"),
        (b"\x89PNG....", f"{NO_IDX}89504e47)"),
        (b"\0\0\x0d\x01\0\0\0\0", f"{NO_IDX}00000d01)"),
        (b"\0\0\x08\x50" + b"\0\0\0\x01" * 80, f"{NO_IDX}00000850)"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "79,228,162,458,924,105,385,300,197,375 bytes by its header; at most 8,589,934,592 are read"),
        (b"\0\0\x08\x03\0\0\0\x01", "truncated: the file ends inside its header"),
        (b"\0\0\x08\x01\0\0\0\x02\x01\x01\x01", "truncated or damaged: 2 bytes by its header, more than that in it"),
        (b"\0\0\x08\x01\0\0\0\x02\x01", "truncated or damaged: 2 bytes by its header, 1 in it"),
    ],
)
def test_idx_file_that_is_none_is_refused(data, reason, make_idx):
    file = make_idx() / "train-images-idx3-ubyte"
    file.write_bytes(data)
    assert refusal(Idx(str(file)).scan) == f"{file}: {reason}"


def test_packed_idx_is_read_as_its_header_says(make_idx, monkeypatch):
    """A small packed file may hold any number of bytes."""
    root = make_idx(zipped=("train",))
    file, read = root / "train-images-idx3-ubyte.gz", []
    whole = gzip.decompress(file.read_bytes())
    file.write_bytes(gzip.compress(whole + bytes(1_000_000)))
    monkeypatch.setattr(idx, "_parse", lambda data, name: read.append(len(data)) or pytest.fail("long enough"))
    with pytest.raises(pytest.fail.Exception):
        Idx(str(root)).read("train", 0)
    assert read == [len(whole) + 1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:-12], ""),
        (lambda data: b"<html>404</html>", "Not a gzipped file"),
        (lambda data: gzip.compress(b"")[:10] + b"\xff" * 40, ""),
        (lambda data: data[:-8] + b"\0" * 4 + data[-4:], "CRC check failed"),
    ],
)
@pytest.mark.parametrize("stem", ["train", "t10k"])
def test_idx_with_a_damaged_gzip(stem, change, reason, make_idx, tmp_path):
    root = make_idx(zipped=(stem,))
    file = root / f"{stem}-images-idx3-ubyte.gz"
    file.write_bytes(change(file.read_bytes()))
    assert refusal(lambda: checked(Idx(str(root)), tmp_path)).startswith(f"{file}: can't be read: {reason}")


@pytest.mark.parametrize(
    ("labels", "files", "reason"),
    [
        ({}, {"train-labels-idx1-ubyte": np.array([0, 1])}, "train: 5 images but 2 labels"),
        ({}, {"train-images-idx3-ubyte": np.array([0, 1])}, "train: images need 3 dimensions and labels 1, found 1 and 1"),
        ({}, {"t10k-images-idx3-ubyte": np.zeros((2, 9, 9))}, "train images are (4, 3), test images (9, 9); they must agree"),
        ({"train": (0, 1, 2), "test": (0, 1)}, {}, "test has no image of class 2; train and test must hold the same classes"),
        ({"train": (0, 0), "test": (0,)}, {}, "labels must run from 0 to 0 without gaps, and be at least two; found 0"),
        ({"train": (0, 2), "test": (2, 0)}, {}, "labels must run from 0 to 2 without gaps, and be at least two; found 0, 2"),
    ],
)
def test_idx_files_that_do_not_fit_together(labels, files, reason, make_idx):
    root = make_idx(**labels)
    for name, values in files.items():
        (root / name).write_bytes(idx_bytes(values))
    assert refusal(Idx(str(root)).scan) == f"dataset {root}: {reason}"


# --- fashion_mnist


@pytest.fixture
def fetching(monkeypatch):
    """Replace the two ways to fetch the example data; by default both fail."""

    def replace(debian, keras):
        monkeypatch.setattr(fashion_mnist, "_from_debian", raising("_from_debian", debian) if isinstance(debian, Exception) else debian)
        monkeypatch.setattr(fashion_mnist, "_from_keras", raising("_from_keras", keras) if isinstance(keras, Exception) else keras)

    replace(OSError("no apt-get"), OSError("no route to host"))
    return replace


def raising(name, error):
    def fetch(scratch):
        raise error

    fetch.__name__ = name
    return fetch


def test_check_mode_expects_example_data_without_fetching_it():
    listing = fashion_mnist.expected()
    assert {split: len(listing.files[split]) for split in ("train", "test")} == {"train": 60000, "test": 10000}
    assert np.bincount(listing.labels["train"]).tolist() == [6000] * 10
    assert len(listing.classes) == 10


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (subprocess.CalledProcessError(100, ["apt-get"], stderr="W: old\nE: Unable to locate package\n"), "E: Unable to locate package"),
        (subprocess.TimeoutExpired(["apt-get"], 300, stderr=b"0% [Connecting]\n"), "0% [Connecting]"),
    ],
)
def test_fashion_mnist_names_every_failed_way(error, shown, tmp_path, fetching):
    """An empty folder counts as absent, and every failure is named."""
    fetching(error, OSError("no route to host"))
    (tmp_path / "kept").mkdir()
    message = refusal(fashion_mnist.locate, tmp_path / "system", tmp_path / "kept")
    assert f"can't be obtained here:\n  debian: {shown}\n  keras: no route to host\n  Install the Debian package dataset-" in message


def test_fashion_mnist_keeps_what_it_fetched(tmp_path, fetching):

    def fetch(scratch):
        (scratch / "made").mkdir()
        (scratch / "made" / "file").touch()
        (scratch / "made" / "file").chmod(0o644)
        (scratch / "made").chmod(0o755)
        return scratch / "made"

    fetching(OSError("no apt-get"), fetch)
    kept = tmp_path / "sources" / "kept"
    assert fashion_mnist.locate(tmp_path / "system", kept) == kept
    assert [path.relative_to(kept.parent).as_posix() for path in kept.parent.rglob("*")] == ["kept", "kept/file"]
    assert [path.stat().st_mode & 0o007 for path in (kept, kept / "file")] == [0, 0], "whatever rights a package gave them"


@pytest.mark.parametrize("place", ["system/usr/share/datasets/fashion-mnist", "kept"])
def test_fashion_mnist_that_exists_is_not_fetched(place, tmp_path, fetching):
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "file").touch()
    assert fashion_mnist.locate(tmp_path / "system", tmp_path / "kept") == tmp_path / place


def test_fashion_mnist_has_its_class_names(make_idx):
    labels = tuple(range(10))
    listing = fashion_mnist.fashion_mnist(str(make_idx(train=labels, test=labels))).scan()
    assert (listing.name, listing.classes[0], listing.classes[9]) == ("fashion_mnist", "T-shirt_top", "Ankle_boot")


# --- which source


def test_detect_tells_the_kinds_apart(make_folder, make_idx, monkeypatch):
    folder, digits = make_folder(), make_idx(zipped=("train",))
    file = digits / "train-images-idx3-ubyte.gz"
    monkeypatch.chdir(folder.parent)
    assert detect("fashion_mnist") == {"source": "fashion_mnist", "path": None}
    called_alike = make_folder("fashion_mnist")
    for given, kind, path in (
        (folder, "folder", folder),
        ("pets", "folder", folder),
        ("fashion_mnist", "folder", called_alike),
        (digits, "idx", digits),
        (file, "idx", file),
    ):
        assert detect(str(given)) == {"source": kind, "path": str(path)}


def test_unknown_source_lists_the_known_ones():
    assert refusal(open_source, "foldr", None) == (
        "data.source: foldr is unknown (did you mean folder?); it must be one of: columns, fashion_mnist, folder, idx, own, tfrecords"
    )


@pytest.mark.parametrize(("dataset", "hint"), [("fashion_mnst", " (did you mean fashion_mnist?)"), ("/no/such/place", "")])
def test_a_missing_dataset_offers_only_names_that_work(dataset, hint):
    assert refusal(detect, dataset) == (
        f"dataset={dataset}: no such folder or file{hint}; give a folder with train/<class>/ and "
        "test/<class>/, MNIST-format files, TFRecords, CSV or Parquet files, FILE.py:FUNCTION, or fashion_mnist"
    )


def test_a_misspelt_folder_names_the_one_beside(tmp_path):
    (tmp_path / "shapes").mkdir()
    assert f": no such folder or file (did you mean {tmp_path}/shapes?); " in refusal(detect, f"{tmp_path}/shpes")


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("folder", "a folder; a dataset folder holds train/<class>/ and test/<class>/"),
        ("idx", "a folder with train-images-idx3-ubyte"),
        ("tfrecords", "a folder with TFRecord files named"),
        ("own", "FILE.py:FUNCTION"),
        ("columns", "a CSV or Parquet file, or a folder with train*, test*"),
    ],
)
def test_source_that_needs_a_path_is_no_dataset(name, needs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refusal(detect, name).startswith(f"dataset={name}: no such folder or file; give a folder")
    assert refusal(open_source, name, None).startswith(f"data.path: the source `{name}` needs {needs}")


HOSTILE = "cat\n\x1b]0;evil\x07\u202e"


@pytest.mark.parametrize("breaking", ["only in one split", "empty", "too few"])
def test_names_of_classes_are_fit_for_a_terminal(breaking, make_folder):
    classes = {"too few": {HOSTILE: 1}}.get(breaking, {HOSTILE: 1, "dog": 1})
    root = make_folder(train=classes, test={"dog": 1} if breaking == "only in one split" else classes)
    if breaking == "empty":
        next((root / "train" / HOSTILE).iterdir()).unlink()
    message = refusal(open_source("folder", str(root)).scan)
    assert message.isprintable()
    assert "cat\\n\\x1b]0;evil\\x07\\u202e" in message
