"""CIFAR-10 (Krizhevsky 2009) as distributed: the python and the binary archive, packed or unpacked, and folders of image files.

Returns the three splits of the course CS-W4121: batches 1 to 4 train (40,000 images), batch 5 validates and `test` evaluates (10,000
each). Folders have no batches: 10,000 images of `train/` validate, the same number of each class.
"""

import bz2
import functools
import gzip
import hashlib
import io
import lzma
import pickle
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np

from control.datasets.listing.stratified import SPLIT_SEED, stratified_order
from control.datasets.sources.folder import Folder
from trainer.common.errors import DatasetError
from trainer.common.safe_text import printable
from trainer.data.images import decode

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
SHAPE = (3, 32, 32)
BATCH = 10_000
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
SPLITS = {"train": 4, "validation": 1, "eval": 1}
"""Batches of each split."""
MEMBER_BYTES = 100 * 2**20
"""More than three times an official batch; a packed file can claim any size, and a sparse one costs its maker nothing."""
FIX_ARCHIVE = "Fix: fetch the archive again"
LAYOUTS = (
    "a python or binary archive of CIFAR-10 (cifar-10-python.tar.gz, cifar-10-binary.tar.gz), such an archive unpacked, or a folder with "
    "train/<class>/ and test/<class>/"
)
Progress = Callable[[int, int], None]


ARCHIVE_BYTES, MEMBERS = 2**29, 100
"""Maximum bytes and members of an unpacked archive: over twice the official archives', of ten members."""
DAMAGED = (
    *(pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, IndexError, AttributeError),
    *(MemoryError, OverflowError, RecursionError),
)
"""Exceptions from a pickle that is no batch."""
PACKED: dict[bytes, Callable[[Path, str], Any]] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
"""By a file's first bytes."""


class Split(NamedTuple):
    """The images of one split, or of a batch."""

    images: np.ndarray
    """`[n, 3, 32, 32]` uint8."""
    labels: np.ndarray
    """`[n]` int64, indices into `CLASSES`."""


@dataclass(frozen=True)
class Archive:
    """The layout of an archive."""

    folder: str
    batches: tuple[str, ...]
    official: str
    """MD5 of the packed archive, from its site."""
    read: Callable[[bytes, str], Split]


class _ArraysOnly(pickle.Unpickler):
    """Loads what an archive's pickles contain, and nothing that could run code."""

    ALLOWED = frozenset({("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")})

    def find_class(self, module: str, name: str) -> Any:
        plain = module.replace("numpy._core", "numpy.core")
        if (plain, name) == ("_codecs", "encode"):
            return _encoded
        if (plain, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR-10 batch contains")
        return super().find_class(module, name)


def _encoded(text: str, encoding: str) -> bytes:
    """Bytes that a pickle holds as text; other encodings double them as often as a pickle says."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it encodes as {encoding!r:.40}, which no CIFAR-10 batch does")
    return text.encode("latin-1")


def _pickled(data: bytes, name: str) -> Split:
    try:
        batch = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
        images, labels = batch[b"data"], batch[b"labels"]
        # A few bytes of a pickle make an array, or lists in lists, of any size: converted, they would fill the memory.
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or not _are_numbers(labels):
            raise ValueError("its data are no bytes, or its labels no list of whole numbers")
        return Split(images.reshape(-1, *SHAPE), np.asarray(labels, np.int64))
    except DAMAGED as error:
        raise DatasetError(f"{name}: truncated or damaged: {error or type(error).__name__}") from None


def _are_numbers(labels: Any) -> bool:
    return isinstance(labels, list) and all(type(label) is int for label in labels)


def _binary(data: bytes, name: str) -> Split:
    record = 1 + int(np.prod(SHAPE))
    if len(data) % record:
        raise DatasetError(f"{name}: truncated or damaged: {len(data):,} bytes are not a multiple of the record size, {record:,}")
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    return Split(rows[:, 1:].reshape(-1, *SHAPE), rows[:, 0].astype(np.int64))


ARCHIVES = {
    "python": Archive("cifar-10-batches-py", BATCHES, "c58f30108f718f92721af3b95e74349a", _pickled),
    "binary": Archive("cifar-10-batches-bin", tuple(f"{name}.bin" for name in BATCHES), "c32a1d4ab5d03f1284b67883e8d87530", _binary),
}


def read_splits(path: Path, digest: str | None, progress: Progress) -> dict[str, Split]:
    """The splits `train`, `validation` and `eval`; DatasetError if these are not CIFAR-10's.

    Args:
        path: of an archive or a folder that exists.
        digest: expected digest of a packed archive, as in `md5:c58f...` or `sha256:...`; `any`; None: the official archive's.
        progress: called with images read and the total.
    """
    if path.is_file():
        batches = _packed(path, digest, progress)
    elif digest is not None:
        raise DatasetError(f"digest={digest}: a digest is of an archive, and {path} is a folder; leave it out")
    elif (path / "train").is_dir():
        return _checked(_folders(path, progress), path)
    else:
        batches = _unpacked(path, progress)
    joined = Split(*map(np.concatenate, zip(*batches[:4], strict=True)))
    return _checked({"train": joined, "validation": batches[4], "eval": batches[5]}, path)


def _checked(splits: dict[str, Split], path: Path) -> dict[str, Split]:
    """The splits, after a check of CIFAR-10's counts and labels."""
    for name, split in splits.items():
        wanted = SPLITS[name] * BATCH
        if len(split.images) != wanted or len(split.labels) != wanted:
            raise DatasetError(f"{path}: {name} has {len(split.images):,} images and {len(split.labels):,} labels; CIFAR-10 has {wanted:,}")
        unknown = sorted(set(split.labels.tolist()) - set(range(len(CLASSES))))
        if unknown:
            raise DatasetError(f"{path}: {name} has the label {unknown[0]}; labels are 0 to {len(CLASSES) - 1}")
    return splits


def _check_digest(path: Path, digest: str | None) -> None:
    if digest == "any":
        return
    official = {f"md5:{archive.official}" for archive in ARCHIVES.values()}
    wanted = {digest} if digest else official
    method = next(iter(wanted)).partition(":")[0]
    if method not in ("md5", "sha256"):
        raise DatasetError(f"digest={digest}: expected md5:HEX, sha256:HEX or any")
    with path.open("rb") as stream:
        actual = f"{method}:{hashlib.file_digest(stream, method).hexdigest()}"
    if actual not in wanted:
        expected = digest or "one of the official archives'"
        raise DatasetError(
            f"{path}: its digest is {actual}, not {expected}: it is truncated or another file. "
            f"Fetch it again, or, if it is the right file: -e digest={actual}"
        )


def _packed(path: Path, digest: str | None, progress: Progress) -> list[Split]:
    _check_digest(path, digest)
    try:
        with _unpacking(path) as stream, tarfile.open(fileobj=_Limited(stream, path), mode="r:") as archive:
            for number, entry in enumerate(archive):
                _check_member(entry, path)
                if number == MEMBERS:
                    raise DatasetError(f"{path}: it has more than {MEMBERS} members; CIFAR-10 archives have ten. {FIX_ARCHIVE}")
            names = archive.getnames()
            layout = next((kind for kind in ARCHIVES.values() if any(name.startswith(kind.folder) for name in names)), None)
            if layout is None:
                raise DatasetError(f"{path}: not CIFAR-10; give {LAYOUTS}")

            def member(name: str) -> bytes:
                stream = archive.extractfile(f"{layout.folder}/{name}") if f"{layout.folder}/{name}" in names else None
                if stream is None:
                    raise DatasetError(f"{path}: {layout.folder}/{name} is missing: the archive is truncated or not CIFAR-10")
                return stream.read()

            return _batches(layout, member, str(path), progress)
    except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise DatasetError(f"{path}: truncated or not an archive: {error}") from None


def _unpacking(path: Path) -> BinaryIO:
    with path.open("rb") as stream:
        start = stream.read(2)
    return cast(BinaryIO, PACKED.get(start, open)(path, "rb"))


class _Limited(io.RawIOBase):
    """An archive, unpacked as it is read, and never beyond what CIFAR-10 has: tarfile believes each header."""

    def __init__(self, stream: BinaryIO, path: Path):
        self._stream, self._path, self.tell = stream, path, stream.tell  # type: ignore[method-assign]

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        self._check(size, self.tell() + size)
        return self._stream.read(size)

    def seek(self, place: int, whence: int = 0) -> int:
        """Go on at a byte."""
        self._check(0, place)
        return self._stream.seek(place, whence)

    def _check(self, size: int, end: int) -> None:
        if size > MEMBER_BYTES or end > ARCHIVE_BYTES:
            raise DatasetError(f"{self._path}: it unpacks to more than {ARCHIVE_BYTES:,} bytes, which CIFAR-10 has not. {FIX_ARCHIVE}")


def _check_member(member: tarfile.TarInfo, path: Path) -> None:
    """Refuse members that no CIFAR-10 archive has: `tarfile` follows links, and reads a member of any size into memory."""
    if member.issym() or member.islnk():
        wrong = f"is a link to {printable(member.linkname)}"
    elif not (member.isreg() or member.isdir()):
        wrong = "is a device or pipe"
    elif member.name.startswith("/") or ".." in PurePosixPath(member.name).parts:
        wrong = "leaves the archive's folder"
    elif member.size > MEMBER_BYTES:
        wrong = f"has {member.size:,} bytes"
    else:
        return
    raise DatasetError(f"{path}: {printable(member.name)} {wrong}; CIFAR-10 archives have no such member. {FIX_ARCHIVE}")


def _unpacked(path: Path, progress: Progress) -> list[Split]:
    for layout in ARCHIVES.values():
        for folder in (path, path / layout.folder):
            if (folder / layout.batches[0]).is_file():
                return _batches(layout, functools.partial(_file, folder), str(folder), progress)
    raise DatasetError(f"path={path}: not CIFAR-10; give {LAYOUTS}")


def _file(folder: Path, name: str) -> bytes:
    try:
        if (folder / name).exists() and not (folder / name).is_file():
            raise DatasetError(f"{folder / name}: can't be read: not a regular file")
        return (folder / name).read_bytes()
    except OSError as error:
        raise DatasetError(f"{folder / name}: can't be read: {error.strerror}") from None


def _batches(layout: Archive, member: Callable[[str], bytes], origin: str, progress: Progress) -> list[Split]:
    batches = []
    for number, name in enumerate(layout.batches, 1):
        batch = layout.read(member(name), f"{origin}: {name}")
        images, labels = map(len, batch)
        if images != BATCH or labels != BATCH:
            raise DatasetError(f"{origin}: {name}: truncated or damaged: {images:,} images and {labels:,} labels, not {BATCH:,}")
        batches.append(batch)
        progress(number * BATCH, len(layout.batches) * BATCH)
    return batches


def _folders(path: Path, progress: Progress) -> dict[str, Split]:
    folder = Folder(str(path))
    listing = folder.scan()
    if listing.classes != CLASSES:
        raise DatasetError(f"{path}: its classes are {printable(', '.join(listing.classes), 300)}; CIFAR-10's are {', '.join(CLASSES)}")
    total, done, splits = sum(map(len, listing.files.values())), 0, {}
    for name, files in listing.files.items():
        images = np.empty((len(files), *SHAPE), np.uint8)
        for index, file in enumerate(files):
            images[index] = _pixels(folder.read(name, index), f"{path}/{file}")
            done += 1
            if done % BATCH == 0:
                progress(done, total)
        splits[name] = Split(images, np.asarray(listing.labels[name], np.int64))
    train = splits["train"]
    order = stratified_order(train.labels, SPLIT_SEED)
    parts = {"train": order[BATCH:], "validation": order[:BATCH]}
    return {name: Split(train.images[chosen], train.labels[chosen]) for name, chosen in parts.items()} | {"eval": splits["test"]}


def _pixels(data: bytes, name: str) -> np.ndarray:
    try:
        image = decode(data)
    except ValueError as error:
        raise DatasetError(f"{name}: can't be read: {error}") from None
    if image.shape != (32, 32, 3):
        raise DatasetError(f"{name}: {image.shape[0]}x{image.shape[1]}x{image.shape[2]}; CIFAR-10's images are 32x32x3")
    return image.transpose(2, 0, 1)
