"""Where images come from: class folders, MNIST-format files, the example dataset, and telling them apart."""

import gzip
import os
import shutil
import subprocess

import numpy as np
import pytest

from control.datasets.listing.registry import detect, open_source
from control.datasets.sources import fashion_mnist, idx
from control.datasets.sources.folder import Folder
from control.datasets.sources.idx import Idx
from tests.unit.samples import idx_bytes, image_bytes
from trainer.common.errors import DatasetError


def refusal(function, *arguments):
    with pytest.raises(DatasetError) as caught:
        function(*arguments)
    return str(caught.value)


# --- folder


def test_folder_lists_classes_and_files_sorted_by_name(make_folder):
    root = make_folder(train={"dog": 2, "cat": 3}, test={"cat": 1, "dog": 1})
    listing = Folder(str(root)).scan()
    assert listing.name == "pets"
    assert listing.classes == ["cat", "dog"]
    assert listing.files["train"] == ["train/cat/0.png", "train/cat/1.png", "train/cat/2.png", "train/dog/0.png", "train/dog/1.png"]
    assert listing.labels == {"train": [0, 0, 0, 1, 1], "test": [0, 1]}
    assert listing.shape is None


def test_folder_reads_the_bytes_of_a_listed_file(make_folder):
    root = make_folder()
    source = Folder(str(root))
    listing = source.scan()
    for index, name in enumerate(listing.files["train"]):
        assert source.read("train", index) == (root / name).read_bytes()


def test_folder_with_spaces_and_umlauts_in_its_names(make_folder):
    root = make_folder("Ärger und Käse", train={"Käse (alt)": 1, "über uns": 1}, test={"Käse (alt)": 1, "über uns": 1})
    source = Folder(str(root))
    listing = source.scan()
    assert listing.name == "Ärger und Käse"
    assert listing.classes == ["Käse (alt)", "über uns"]
    assert source.read("test", 1) == (root / "test" / "über uns" / "0.png").read_bytes()


@pytest.mark.parametrize("name", ["a.jpg", "a.JPEG", "a.png", "a.Bmp", "a.gif"])
def test_folder_takes_images_by_any_case_of_ending(name, make_folder):
    root = make_folder()
    (root / "train" / "cat" / name).write_bytes(b"x")
    listing = Folder(str(root)).scan()
    assert f"train/cat/{name}" in listing.files["train"]
    assert listing.ignored == []


def test_folder_ignores_what_is_no_image(make_folder):
    root = make_folder()
    for name in ("Thumbs.db", "notes.txt", ".hidden.png", "film.mp4"):
        (root / "train" / "cat" / name).write_bytes(b"x")
    (root / "train" / ".git").mkdir()
    (root / "train" / "readme.md").write_text("x")
    listing = Folder(str(root)).scan()
    assert len(listing.files["train"]) == 5
    assert sorted(listing.ignored) == ["train/cat/Thumbs.db", "train/cat/film.mp4", "train/cat/notes.txt"]
    assert listing.classes == ["cat", "dog"]


def test_folder_names_ignored_folders_and_broken_links(make_folder):
    root = make_folder()
    (root / "train" / "cat" / "more").mkdir()
    (root / "train" / "cat" / "lost.png").symlink_to(root / "nowhere.png")
    assert sorted(Folder(str(root)).scan().ignored) == ["train/cat/lost.png", "train/cat/more"]


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


def test_folder_that_is_not_there(tmp_path):
    assert refusal(Folder(str(tmp_path / "x")).scan).startswith(f"dataset {tmp_path}/x: no such folder; a dataset folder holds train/")


def test_folder_of_one_class_names_the_one_above(make_folder):
    message = refusal(Folder(str(make_folder() / "train" / "cat")).scan)
    assert "its pictures are in no folder of their class; if it is one class, give the folder above; " in message


@pytest.mark.parametrize("left", ["test", "Testing", "val", "training"])
def test_folder_without_train(left, make_folder):
    root = make_folder()
    (root / "train").rename(root / "cats")
    (root / "test").rename(root / left)
    message = refusal(Folder(str(root)).scan)
    assert message.startswith(f"dataset {root}: there is no train/ in it; ")
    assert "train/<class>/ and test/<class>/" in message


@pytest.mark.parametrize("name", ["val", "validation", "valid"])
def test_folder_with_validation_images_of_its_own(name, make_folder):
    root = make_folder(train={"cat": 3, "dog": 2}, test={"cat": 1, "dog": 1})
    (root / name / "dog").mkdir(parents=True)
    for number in range(2):
        (root / name / "dog" / f"{number}.png").write_bytes(image_bytes(90 + number))
    source = Folder(str(root))
    listing = source.scan()
    assert listing.held_out == 2
    assert listing.files["train"][:3] == [f"{name}/dog/0.png", f"{name}/dog/1.png", "train/cat/0.png"]
    assert listing.labels == {"train": [1, 1, 0, 0, 0, 1, 1], "test": [0, 1]}
    assert listing.note == f"2 images in {name}/ are for validation"
    assert source.read("train", 1) == image_bytes(91)
    (root / name / "emu").mkdir()
    assert refusal(Folder(str(root)).scan).endswith(f"train/ and {name}/ must hold the same classes; only in {name}/: emu")


def test_folder_with_two_validation_folders(make_folder):
    root = make_folder()
    for name in ("val", "validation"):
        (root / name).mkdir()
    assert refusal(Folder(str(root)).scan) == f"dataset {root}: both val/ and validation/ are in it; remove or rename one of them"


@pytest.mark.parametrize("flat", [True, False])
def test_folder_without_test_images_holds_some_out(flat, make_folder):
    root = make_folder(train={"cat": 10, "dog": 23}, test={"cat": 1, "dog": 1})
    shutil.rmtree(root / "test")
    prefix = "train/"
    if flat:
        prefix = ""
        for name in ("cat", "dog"):
            (root / "train" / name).rename(root / name)
        (root / "train").rmdir()
    source = Folder(str(root))
    listing = source.scan()
    assert listing.classes == ["cat", "dog"]
    assert {split: np.bincount(labels).tolist() for split, labels in listing.labels.items()} == {"train": [8, 18], "test": [2, 5]}
    assert sorted([*listing.files["train"], *listing.files["test"]]) == sorted(
        f"{prefix}{name}/{number}.png" for name, count in (("cat", 10), ("dog", 23)) for number in range(count)
    )
    assert source.read("test", 0) == (root / listing.files["test"][0]).read_bytes()
    assert listing.held_out is None
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


def test_folder_with_a_class_too_small_to_split(make_folder):
    root = make_folder(train={"cat": 10, "dog": 1})
    shutil.rmtree(root / "test")
    assert refusal(Folder(str(root)).scan).startswith(f"dataset {root}: class dog has 1 image, and as there is no test/, at least one")


def test_folder_with_one_class(make_folder):
    root = make_folder(train={"cat": 2}, test={"cat": 1})
    assert refusal(Folder(str(root)).scan).startswith(f"dataset {root}: at least two classes are needed, found: cat; ")


def test_folder_without_classes(tmp_path):
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
    assert "at least two classes are needed, found: none" in refusal(Folder(str(tmp_path)).scan)


@pytest.mark.parametrize("split", ["train", "test"])
def test_folder_with_an_empty_class(split, make_folder):
    root = make_folder()
    for file in (root / split / "dog").iterdir():
        file.rename(file.with_suffix(".txt"))
    assert refusal(Folder(str(root)).scan) == (
        f"dataset {root}: class {split}/dog is empty; put images (JPEG, PNG, BMP, GIF) in it or remove the class"
    )


def test_folder_with_differing_classes_names_them(make_folder):
    root = make_folder(train={"cat": 1, "dog": 1, "cow": 1}, test={"cat": 1, "emu": 1, "eel": 1})
    assert refusal(Folder(str(root)).scan) == (
        f"dataset {root}: train/ and test/ must hold the same classes; only in train/: cow, dog; only in test/: eel, emu"
    )


# --- idx


@pytest.mark.parametrize("zipped", [(), ("train",), ("train", "t10k")])
def test_idx_plain_and_gzipped(zipped, make_idx):
    root = make_idx(zipped=zipped)
    source = Idx(str(root))
    listing = source.scan()
    assert (listing.name, listing.classes, listing.shape) == ("digits", ["0", "1"], (4, 3, 1))
    assert listing.labels == {"train": [0, 1, 0, 1, 1], "test": [1, 0]}
    assert listing.files["test"] == ["test/00000", "test/00001"]
    expected = np.random.default_rng(0).integers(0, 256, (5, 4, 3)).astype(np.uint8)
    assert [source.read("train", index) for index in range(5)] == [image.tobytes() for image in expected]


def test_idx_takes_one_of_its_files_for_folder(make_idx):
    root = make_idx()
    assert Idx(str(root / "t10k-labels-idx1-ubyte")).scan().labels["test"] == [1, 0]


def test_idx_names_may_have_dots(make_idx):
    """Idx with dots in the names as some copies have."""
    root = make_idx()
    for file in list(root.iterdir()):
        file.rename(root / file.name.replace("-idx", ".idx"))
    assert len(Idx(str(root)).scan().files["train"]) == 5


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_idx_names_a_missing_file(name, make_idx):
    root = make_idx()
    (root / name).unlink()
    message = refusal(Idx(str(root)).scan)
    assert message.startswith(f"dataset {root}: {name} is missing; the source `idx` needs train-images-idx3-ubyte, ")
    assert message.endswith("(each plain or .gz)")


def test_idx_truncated_says_how_much_is_there(make_idx):
    root = make_idx()
    file = root / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-7])
    assert refusal(Idx(str(root)).scan) == f"{file}: truncated or damaged: 60 bytes by its header, 53 in it"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not an idx file of unsigned bytes in 1 to 3 dimensions (magic )"),
        (b"\x89PNG....", "not an idx file of unsigned bytes in 1 to 3 dimensions (magic 89504e47)"),
        (b"\0\0\x0d\x01\0\0\0\0", "not an idx file of unsigned bytes in 1 to 3 dimensions (magic 00000d01)"),
        (b"\0\0\x08\x50" + b"\0\0\0\x01" * 80, "not an idx file of unsigned bytes in 1 to 3 dimensions (magic 00000850)"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "79,228,162,458,924,105,385,300,197,375 bytes by its header; at most 8,589,934,592 are read"),
        (b"\0\0\x08\x03\0\0\0\x01", "truncated: the file ends inside its header"),
        (b"\0\0\x08\x01\0\0\0\x02\x01\x01\x01", "truncated or damaged: 2 bytes by its header, more than that in it"),
    ],
)
def test_idx_parse_says_what_is_wrong(data, reason):
    assert refusal(idx._parse, data, "file") == f"file: {reason}"


def test_packed_idx_is_read_as_its_header_says(make_idx, monkeypatch):
    """A small packed file may hold any number of bytes."""
    root = make_idx(zipped=("train",))
    file, read = root / "train-images-idx3-ubyte.gz", []
    whole = gzip.decompress(file.read_bytes())
    file.write_bytes(gzip.compress(whole + bytes(1_000_000)))
    monkeypatch.setattr(idx, "_parse", lambda data, name: read.append(len(data)) or pytest.fail("long enough"))
    with pytest.raises(pytest.fail.Exception):
        Idx(str(root)).scan()
    assert read == [len(whole) + 1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:-12], ""),
        (lambda data: b"<html>404</html>", "Not a gzipped file"),
        (lambda data: gzip.compress(b"")[:10] + b"\xff" * 40, ""),
    ],
)
def test_idx_with_a_damaged_gzip(change, reason, make_idx):
    root = make_idx(zipped=("train",))
    file = root / "train-images-idx3-ubyte.gz"
    file.write_bytes(change(file.read_bytes()))
    assert refusal(Idx(str(root)).scan).startswith(f"{file}: can't be read: {reason}")


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("train-labels-idx1-ubyte", np.array([0, 1]), "train: 5 images but 2 labels"),
        ("train-images-idx3-ubyte", np.array([0, 1]), "train: images need 3 dimensions and labels 1, found 1 and 1"),
        ("t10k-images-idx3-ubyte", np.zeros((2, 9, 9)), "train images are (4, 3), test images (9, 9); they must agree"),
    ],
)
def test_idx_files_that_do_not_fit_together(name, values, reason, make_idx):
    root = make_idx()
    (root / name).write_bytes(idx_bytes(values))
    assert refusal(Idx(str(root)).scan) == f"dataset {root}: {reason}"


@pytest.mark.parametrize(
    ("train", "test", "reason"),
    [
        ((0, 1, 2), (0, 1), "test has no image of class 2; train and test must hold the same classes"),
        ((0, 0), (0,), "labels must run from 0 to 0 without gaps, and be at least two; found 0"),
        ((0, 2), (2, 0), "labels must run from 0 to 2 without gaps, and be at least two; found 0, 2"),
    ],
)
def test_idx_with_labels_that_are_no_classes(train, test, reason, make_idx):
    root = make_idx(train=train, test=test)
    assert refusal(Idx(str(root)).scan) == f"dataset {root}: {reason}"


# --- fashion_mnist


def _from_debian(scratch):
    raise subprocess.CalledProcessError(100, ["apt-get"], stderr="W: old\nE: Unable to locate package dataset-fashion-mnist\n")


def _from_keras(scratch):
    raise OSError("no route to host")


@pytest.fixture
def offline(monkeypatch):
    """Every way to fetch the example data fails."""
    monkeypatch.setattr(fashion_mnist, "_from_debian", _from_debian)
    monkeypatch.setattr(fashion_mnist, "_from_keras", _from_keras)


def test_check_mode_expects_example_data_without_fetching_it():
    listing = fashion_mnist.expected()
    assert {split: len(listing.files[split]) for split in ("train", "test")} == {"train": 60000, "test": 10000}
    assert np.bincount(listing.labels["train"]).tolist() == [6000] * 10
    assert len(listing.classes) == 10


def test_fashion_mnist_names_every_failed_way(tmp_path, offline):
    """Fashion mnist in an empty folder counts as absent and every failure is named."""
    (tmp_path / "kept").mkdir()
    message = refusal(fashion_mnist.locate, tmp_path / "system", tmp_path / "kept")
    assert "can't be obtained here" in message
    assert "\n  debian: E: Unable to locate package dataset-fashion-mnist\n" in message
    assert "\n  keras: no route to host\n" in message
    assert "Install the Debian package dataset-fashion-mnist, or give your own images: -e dataset=FOLDER" in message


def test_fashion_mnist_shows_a_timeout_as_text(tmp_path, offline, monkeypatch):
    def slow(scratch):
        raise subprocess.TimeoutExpired(["apt-get"], 300, stderr=b"0% [Connecting]\n")

    monkeypatch.setattr(fashion_mnist, "_from_debian", slow)
    assert "b'" not in refusal(fashion_mnist.locate, tmp_path / "system", tmp_path / "kept")


def test_fashion_mnist_keeps_what_it_fetched(tmp_path, offline, monkeypatch):
    """Fashion mnist tries the next way and keeps what it fetched."""

    def fetch(scratch):
        (scratch / "made").mkdir()
        (scratch / "made" / "file").touch()
        (scratch / "made" / "file").chmod(0o644)
        (scratch / "made").chmod(0o755)
        return scratch / "made"

    monkeypatch.setattr(fashion_mnist, "_from_keras", fetch)
    kept = tmp_path / "sources" / "kept"
    assert fashion_mnist.locate(tmp_path / "system", kept) == kept
    assert [path.relative_to(kept.parent).as_posix() for path in kept.parent.rglob("*")] == ["kept", "kept/file"]
    assert [path.stat().st_mode & 0o007 for path in (kept, kept / "file")] == [0, 0], "whatever rights a package gave them"


@pytest.mark.parametrize("place", ["system/usr/share/datasets/fashion-mnist", "kept"])
def test_fashion_mnist_that_exists_is_not_fetched(place, tmp_path, offline):
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "file").touch()
    assert fashion_mnist.locate(tmp_path / "system", tmp_path / "kept") == tmp_path / place


def test_fashion_mnist_has_its_class_names(make_idx):
    labels = tuple(range(10))
    listing = fashion_mnist.fashion_mnist(str(make_idx(train=labels, test=labels))).scan()
    assert (listing.name, listing.classes[0], listing.classes[9]) == ("fashion_mnist", "T-shirt_top", "Ankle_boot")


# --- which source


def test_detect_tells_the_kinds_apart(make_folder, make_idx):
    folder, digits = make_folder(), make_idx(zipped=("train",))
    assert detect(str(folder)) == {"source": "folder", "path": str(folder)}
    assert detect(str(digits)) == {"source": "idx", "path": str(digits)}
    file = digits / "train-images-idx3-ubyte.gz"
    assert detect(str(file)) == {"source": "idx", "path": str(file)}


def test_detect_sources_name_unless_such_folder_exists(make_folder, monkeypatch):
    assert detect("fashion_mnist") == {"source": "fashion_mnist", "path": None}
    root = make_folder("fashion_mnist")
    monkeypatch.chdir(root.parent)
    assert detect("fashion_mnist") == {"source": "folder", "path": str(root)}


def test_detect_makes_paths_absolute(make_folder, monkeypatch):
    root = make_folder()
    monkeypatch.chdir(root.parent)
    assert detect("pets") == {"source": "folder", "path": str(root)}


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
    with pytest.raises(DatasetError) as caught:
        open_source("folder", str(root)).scan()
    assert str(caught.value).isprintable()
    assert "cat\\n\\x1b]0;evil\\x07\\u202e" in str(caught.value)
