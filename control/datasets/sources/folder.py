"""Source `folder`: `train/<class>/*`, `test/<class>/*` and, optionally, `val/<class>/*`; or class folders alone.

Missing test images are held out of the rest, the same share of each class. An image's name decides, so it stays in its split when
others are added or removed.
"""

import dataclasses
import hashlib
import os
from pathlib import Path

from control.datasets.listing.image_headers import EXTENSIONS, read_image
from control.datasets.listing.registry import Listing, source
from trainer.common.errors import DatasetError
from trainer.common.safe_text import printable
from trainer.config.schema import Data
from trainer.data.manifest import SPLITS

VALIDATION = ("val", "validation", "valid")
OTHERS = ("test", "testing", "eval", "training", *VALIDATION)
"""Folders beside `train/` that are not classes."""
SHOWN = 20
"""Classes that a message names."""
LAYOUT = "a dataset folder holds train/<class>/ and test/<class>/ with JPEG, PNG, BMP or GIF files, or nothing but class folders"
Entry = tuple[str, int, int]
"""Name, bytes, modification time."""


@source("folder", f"a folder; {LAYOUT}", takes=("test_split",))
class Folder:
    """Images in class folders."""

    def __init__(self, path: str, test_split: float = Data.test_split):
        self.path, self._test_split = Path(path).expanduser().resolve(), test_split
        self._files: dict[str, list[str]] = {}

    def scan(self) -> Listing:
        """List classes and files, sorted by name; DatasetError with the broken rule."""
        split_folders = self._split_folders()
        classes = self._classes(split_folders)
        ignored: list[str] = []
        images = {split: self._entries(folder, classes, ignored) for split, folder in split_folders.items()}
        if "test" not in images:
            images["test"] = {name: _held_out(entries, self._test_split) for name, entries in images["train"].items()}
            images["train"] = {name: sorted(set(entries) - set(images["test"][name])) for name, entries in images["train"].items()}
            for name in (name for name, entries in images["train"].items() if not entries):
                why = "and as there is no test/, at least one of each class is held out for testing; add at least one more"
                raise DatasetError(f"dataset {self.path}: class {name} has 1 image, {why}")
        stamp = hashlib.sha256()
        files: dict[str, list[str]] = {split: [] for split in SPLITS}
        labels: dict[str, list[int]] = {split: [] for split in SPLITS}
        numbers = {name: number for number, name in enumerate(classes)}
        # Validation images are held-out training images: they come first.
        for split in ("validation", *SPLITS):
            listed_as = "train" if split == "validation" else split
            for name, entries in images.get(split, {}).items():
                for entry, size, changed in entries:
                    stamp.update(os.fsencode(f"{split}\0{entry}\0{size}\0{changed}\n"))
                    files[listed_as].append(entry)
                    labels[listed_as].append(numbers[name])
        self._files = files
        held = sum(len(entries) for entries in images.get("validation", {}).values())
        notes = [f"{held:,} images in {split_folders['validation']}/ are for validation"] if held else []
        if "test" not in split_folders:
            test = f"{len(files['test']):,} images, chosen by their names"
            notes.append(f"there is no test/, so data.test_split={self._test_split:g} of each class is held out for testing ({test})")
        listing = Listing(self.path.name, classes, files, labels, stamp.hexdigest(), None, ignored, held or None)
        return dataclasses.replace(listing, draws_test="test" not in split_folders, note="; ".join(notes))

    def read(self, split: str, index: int) -> bytes:
        """Bytes of an image file."""
        return read_image(self.path / self._files[split][index])

    def _split_folders(self) -> dict[str, str]:
        """The folder of each existing split; class folders alone are in the dataset's own folder."""
        self._check_name(str(self.path))
        if not self.path.is_dir():
            raise DatasetError(f"dataset {self.path}: no such folder; {LAYOUT}")
        beside = self._subfolders("")
        validation = [name for name in VALIDATION if name in beside]
        if len(validation) > 1:
            raise DatasetError(f"dataset {self.path}: both {validation[0]}/ and {validation[1]}/ are in it; remove or rename one of them")
        if "train" in beside:
            test = {"test": "test"} if "test" in beside else {}
            return {"train": "train", **test, **({"validation": validation[0]} if validation else {})}
        if not beside and self._images("", []):
            rule = "its pictures are in no folder of their class; if it is one class, give the folder above"
            raise DatasetError(f"dataset {self.path}: {rule}; {LAYOUT}")
        if not beside or any(name.lower() in OTHERS for name in beside):
            raise DatasetError(f"dataset {self.path}: there is no train/ in it; {LAYOUT}")
        return {"train": ""}

    def _classes(self, split_folders: dict[str, str]) -> list[str]:
        names = {folder: self._subfolders(folder) for folder in split_folders.values()}
        train = names[split_folders["train"]]
        for split, folder in split_folders.items():
            differing = {"train": train - names[folder] if split == "test" else set(), folder: names[folder] - train}
            only = [f"only in {where}/: {_some(one)}" for where, one in differing.items() if one]
            if only:
                raise DatasetError(f"dataset {self.path}: train/ and {folder}/ must hold the same classes; {'; '.join(only)}")
        if len(train) < 2:
            listed = ", ".join(map(printable, sorted(train))) or "none"
            raise DatasetError(f"dataset {self.path}: at least two classes are needed, found: {listed}; {LAYOUT}")
        return sorted(train)

    def _entries(self, folder: str, classes: list[str], ignored: list[str]) -> dict[str, list[Entry]]:
        """Entries by class; a validation folder need not have all classes."""
        return {name: self._images(f"{folder}/{name}".lstrip("/"), ignored) for name in classes if (self.path / folder / name).is_dir()}

    def _subfolders(self, split: str) -> set[str]:
        with os.scandir(self.path / split) as entries:
            names = {entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")}
        for name in sorted(names):
            self._check_name(f"{split}/{name}".lstrip("/"))
        return names

    def _check_name(self, name: str) -> None:
        """Refuse a name that a manifest can't hold: undecodable bytes appear in it as lone surrogates."""
        try:
            name.encode()
        except UnicodeEncodeError:
            raise DatasetError(f"dataset {str(self.path)!r}: the name {name!r} is not UTF-8; rename it") from None

    def _images(self, folder: str, ignored: list[str]) -> list[Entry]:
        images = []
        with os.scandir(self.path / folder) as entries:
            for entry in entries:
                relative = f"{folder}/{entry.name}"
                if entry.name.startswith("."):
                    continue
                if not entry.is_file() or os.path.splitext(entry.name)[1].lower() not in EXTENSIONS:
                    ignored.append(relative)
                    continue
                self._check_name(relative)
                stat = entry.stat()
                images.append((relative, stat.st_size, stat.st_mtime_ns))
        if not images:
            raise DatasetError(
                f"dataset {self.path}: class {printable(folder)} is empty; put images (JPEG, PNG, BMP, GIF) in it or remove the class"
            )
        return sorted(images)


def _some(names: set[str]) -> str:
    """Names for a message: 100,000 folders would fill screens."""
    more = f", {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(map(printable, sorted(names)[:SHOWN])) + more


def _held_out(entries: list[Entry], share: float) -> list[Entry]:
    """A share of a class, at least one and, of several, not all, by a digest of the names."""
    drawn = sorted(entries, key=lambda entry: hashlib.sha256(Path(entry[0]).name.encode()).digest())
    return sorted(drawn[: max(1, min(len(entries) - 1, round(len(entries) * share)))])
