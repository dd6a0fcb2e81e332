"""Images that can't be read are known, and left out, before anything is published."""

import os

import pytest

from control.datasets.publishing import image_check, publish
from control.datasets.sources.folder import Folder
from trainer.common.errors import DatasetError


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


def checked(root, packs, allow_bad=True, progress=lambda *_: None):
    source = Folder(str(root))
    return image_check.ImageCheck(source, source.scan(), packs).readable(allow_bad, progress)


def test_listing_is_as_what_is_published(make_folder, tmp_path):
    root, packs = make_folder(), tmp_path / "packs"
    (root / "train/cat/1.png").write_bytes(b"no image")
    left, bad = checked(root, packs)
    assert [name for name, _ in bad] == ["train/cat/1.png"]
    made = publish.publish(Folder(str(root)), packs, True, lambda *_: None)
    assert made.excluded == bad
    assert [(left.files[split], left.labels[split]) for split in left.files] == [
        (made.records(split).files, made.records(split).labels) for split in left.files
    ]


def test_held_out_images_are_those_that_are_left(make_folder, tmp_path):
    root = make_folder()
    for name in ("cat", "dog"):
        (root / f"val/{name}").mkdir(parents=True)
        (root / f"val/{name}/v.png").write_bytes((root / f"train/{name}/0.png").read_bytes())
    (root / "val/cat/v.png").write_bytes(b"")
    left, _ = checked(root, tmp_path / "packs")
    assert (left.held_out, left.files["train"][0]) == (1, "val/dog/v.png")
    assert publish.publish(Folder(str(root)), tmp_path / "packs", True, lambda *_: None).held_out == 1


def test_unchanged_source_is_decoded_once(make_folder, tmp_path, monkeypatch):
    root, packs, reported = make_folder(), tmp_path / "packs", []
    checked(root, packs, allow_bad=False, progress=lambda done, total: reported.append((done, total)))
    assert reported[-1] == (7, 7)
    monkeypatch.setattr(image_check, "decode", lambda _: pytest.fail("decoded again"))
    checked(root, packs, progress=lambda *_: pytest.fail("checked again"))
    publish.publish(Folder(str(root)), packs, False, lambda *_: None)


def test_refused_image_is_tried_again(make_folder, tmp_path, monkeypatch):
    """A file that may not be read looks the same when it may."""
    root, read = make_folder(), Folder.read

    def denied(self, split, index):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Folder, "read", denied)
    with pytest.raises(DatasetError, match=r"7 images can't be read:\n  train/cat/0\.png: Permission denied"):
        checked(root, tmp_path / "packs", allow_bad=False)
    monkeypatch.setattr(Folder, "read", read)
    assert checked(root, tmp_path / "packs", allow_bad=False)[1] == []
