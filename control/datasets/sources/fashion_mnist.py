"""Source `fashion_mnist` (Xiao, Rasul, Vollgraf 2017, arXiv:1708.07747): the example dataset.

Uses the Debian package `dataset-fashion-mnist` if it is installed or can be fetched and
unpacked without root; otherwise Keras downloads it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from control.datasets.listing import unfinished
from control.datasets.listing.registry import Listing, source
from control.datasets.sources.idx import Idx, listing
from trainer.common import files
from trainer.common.errors import DatasetError

PACKAGE = "dataset-fashion-mnist"
FOLDER = "usr/share/datasets/fashion-mnist"
KEPT = Path(".lockstep/sources") / PACKAGE
CLASSES = ["T-shirt_top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle_boot"]


@source("fashion_mnist")
def fashion_mnist(path: str | None) -> Idx:
    """The example dataset; `path` names a folder that already holds its files."""
    folder = Path(path) if path else locate(Path("/"), KEPT)
    return Idx(str(folder), "fashion_mnist", CLASSES)


def expected() -> Listing:
    """The dataset's contents after fetching, for a plan that may not fetch it."""
    labels = {split: [*range(len(CLASSES))] * each for split, each in (("train", 6000), ("test", 1000))}
    return listing("fashion_mnist", CLASSES, labels, "", (28, 28, 1))


def is_here() -> bool:
    """Return whether the files are already on this machine."""
    return _existing(Path("/"), KEPT) is not None


def _existing(system: Path, kept: Path) -> Path | None:
    return next((folder for folder in (system / FOLDER, kept) if folder.is_dir() and any(folder.iterdir())), None)


def locate(system: Path, kept: Path) -> Path:
    """Folder with the four files: installed under `system`, kept from before, or fetched now into `kept`; DatasetError if that fails."""
    existing, reasons = _existing(system, kept), []
    if existing is not None:
        return existing
    for fetch in (_from_debian, _from_keras):
        try:
            with unfinished.folder_in(kept.parent) as scratch:
                folder = fetch(scratch)
                _close(folder)
                shutil.rmtree(kept, ignore_errors=True)
                return folder.rename(kept)
        except (OSError, subprocess.SubprocessError) as error:
            reasons.append(f"{fetch.__name__.removeprefix('_from_')}: {_reason(error)}")
    raise DatasetError(
        "Fashion-MNIST, the example dataset, can't be obtained here:\n  "
        + "\n  ".join(reasons)
        + f"\n  Install the Debian package {PACKAGE}, or give your own images: -e dataset=FOLDER with train/<class>/ and test/<class>/."
    )


def _close(folder: Path) -> None:
    """The rights of all that is kept here, instead of the package's."""
    folder.chmod(files.FOLDER)
    for path in folder.iterdir():
        path.chmod(files.FILE)


def _reason(error: Exception) -> str:
    stderr = getattr(error, "stderr", None)
    if isinstance(stderr, bytes):  # TimeoutExpired, also with text=True
        stderr = stderr.decode(errors="replace")
    return (stderr.strip().splitlines() or [str(error)])[-1] if stderr else str(error)


def _from_debian(scratch: Path) -> Path:
    """Fetch and unpack the package without installing it."""
    _run(["apt-get", "download", PACKAGE], scratch)
    _run(["dpkg", "-x", str(next(scratch.glob("*.deb"))), "tree"], scratch)
    return scratch / "tree" / FOLDER


def _from_keras(scratch: Path) -> Path:
    """Have Keras download the files (in its own process, since it imports TensorFlow)."""
    code = "import keras; keras.datasets.fashion_mnist.load_data()"
    _run([sys.executable, "-c", code], scratch, {**os.environ, "KERAS_HOME": str(scratch)})
    return scratch / "datasets" / "fashion-mnist"


def _run(argv: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    subprocess.run(argv, cwd=folder, env=environment, check=True, capture_output=True, text=True, timeout=300)
