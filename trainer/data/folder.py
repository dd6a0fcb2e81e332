"""Source `folder`: `train/<class>/*` and `test/<class>/*`, image files of any size."""

import hashlib
import os
from pathlib import Path

from trainer.data.images import EXTENSIONS
from trainer.data.sources import Listing, source
from trainer.errors import DatasetError

SPLITS = ("train", "test")
LAYOUT = "a dataset folder holds train/<class>/ and test/<class>/ with JPEG, PNG, BMP or GIF files"


@source("folder")
class Folder:
    """Images in class folders."""

    def __init__(self, path: str | None):
        if path is None:
            raise DatasetError(f"data.path: the source `folder` needs a folder; {LAYOUT}")
        self.path = Path(path).expanduser().resolve()
        self._files: dict[str, list[str]] = {}

    def scan(self) -> Listing:
        """List classes and files, sorted by name; raises DatasetError with the rule that is broken."""
        classes = self._classes()
        files: dict[str, list[str]] = {split: [] for split in SPLITS}
        labels: dict[str, list[int]] = {split: [] for split in SPLITS}
        ignored: list[str] = []
        stamp = hashlib.sha256()
        for split in SPLITS:
            for label, name in enumerate(classes):
                entries = self._images(split, name, ignored)
                for entry, size, changed in entries:
                    stamp.update(os.fsencode(f"{entry}\0{size}\0{changed}\n"))
                    files[split].append(entry)
                    labels[split].append(label)
        self._files = files
        return Listing(self.path.name, classes, files, labels, stamp.hexdigest(), None, ignored)

    def read(self, split: str, index: int) -> bytes:
        """Bytes of an image file."""
        return (self.path / self._files[split][index]).read_bytes()

    def _classes(self) -> list[str]:
        self._check_name(str(self.path))
        if not self.path.is_dir():
            raise DatasetError(f"dataset {self.path}: no such folder; {LAYOUT}")
        for split in SPLITS:
            if not (self.path / split).is_dir():
                raise DatasetError(f"dataset {self.path}: there is no {split}/ in it; {LAYOUT}")
        train, test = (self._subfolders(split) for split in SPLITS)
        if train != test:
            only = [f"only in train/: {', '.join(sorted(train - test))}"] if train - test else []
            only += [f"only in test/: {', '.join(sorted(test - train))}"] if test - train else []
            raise DatasetError(f"dataset {self.path}: train/ and test/ must hold the same classes; {'; '.join(only)}")
        if len(train) < 2:
            found = ", ".join(sorted(train)) or "none"
            raise DatasetError(f"dataset {self.path}: at least two classes are needed, found: {found}; {LAYOUT}")
        return sorted(train)

    def _subfolders(self, split: str) -> set[str]:
        with os.scandir(self.path / split) as entries:
            names = {entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")}
        for name in sorted(names):
            self._check_name(f"{split}/{name}")
        return names

    def _check_name(self, name: str) -> None:
        """Refuse a name that can't be written to a manifest: bytes that are no text stand in it as lone surrogates."""
        try:
            name.encode()
        except UnicodeEncodeError:
            raise DatasetError(f"dataset {str(self.path)!r}: the name {name!r} is not UTF-8; rename it") from None

    def _images(self, split: str, name: str, ignored: list[str]) -> list[tuple[str, int, int]]:
        found = []
        with os.scandir(self.path / split / name) as entries:
            for entry in entries:
                relative = f"{split}/{name}/{entry.name}"
                if entry.name.startswith("."):
                    continue
                if not entry.is_file() or os.path.splitext(entry.name)[1].lower() not in EXTENSIONS:
                    ignored.append(relative)
                    continue
                self._check_name(relative)
                stat = entry.stat()
                found.append((relative, stat.st_size, stat.st_mtime_ns))
        if not found:
            raise DatasetError(
                f"dataset {self.path}: class {split}/{name} is empty; put images (JPEG, PNG, BMP, GIF) in it or remove the class"
            )
        return sorted(found)
