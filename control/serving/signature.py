"""Inputs and outputs of an exported model by name, in a file beside the model. Reading needs neither TensorFlow nor the user's code."""

import contextlib
import keyword
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from control.common import text
from control.datasets.listing.specs import DTYPES
from trainer.common.errors import LockstepError
from trainer.common.files import read_json, write_json
from trainer.data.spec import Leaf

FILE = "lockstep.json"
TENSORS, CSV, EXAMPLES, IMAGES = "serving_default", "csv", "examples", "image_bytes"
"""Signatures: arrays, CSV lines, serialized tf.Example, encoded images."""
VERSION = re.compile(r"[1-9]\d{0,8}")


@dataclass(frozen=True)
class ExportedModel:
    """A version of an exported model."""

    run: str
    epoch: int
    snapshot_sha256: str
    created_at: str
    inputs: tuple[Leaf, ...]
    """By the names that clients use."""
    outputs: tuple[Leaf, ...]
    classes: tuple[str, ...]
    """Classes of an image, or of the only output that has as many numbers; else empty."""
    image_size: tuple[int, ...] | None
    """Height, width, channels of what an image becomes; None: the model takes columns."""
    signatures: tuple[str, ...]
    left_out: dict[str, str]
    """Signatures and formats that this model can't have, and why."""

    def write(self, folder: Path) -> None:
        """Write it beside the model."""
        write_json(folder / FILE, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "ExportedModel":
        """Read a version's folder; LockstepError if `export.yml` did not write it."""
        try:
            raw: dict[str, Any] = read_json(folder / FILE)
            size = raw["image_size"]
            return cls(
                run=str(raw["run"]),
                epoch=int(raw["epoch"]),
                snapshot_sha256=str(raw["snapshot_sha256"]),
                created_at=str(raw["created_at"]),
                inputs=tuple(map(_leaf, raw["inputs"])),
                outputs=tuple(map(_leaf, raw["outputs"])),
                classes=tuple(map(str, raw["classes"])),
                image_size=None if size is None else tuple(map(int, size)),
                signatures=tuple(map(str, raw["signatures"])),
                left_out={str(name): str(why) for name, why in raw["left_out"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LockstepError(
                f"{folder}: {FILE} is missing, or was not written by export.yml ({error}); export the model again"
            ) from None


def _leaf(raw: Any) -> Leaf:
    if raw["dtype"] not in DTYPES:
        raise ValueError(f"dtype {raw['dtype']!r}")
    return Leaf(str(raw["name"]), raw["dtype"], tuple(None if side is None else int(side) for side in raw["shape"]))


def named(leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
    """Arrays under the names that clients use: `x.age` is `age`, `x[1]` is `x_1`; each once."""
    return _under(text.distinct(_short(leaf) for leaf in leaves), leaves)


def arguments(leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
    """Likewise, under names that differ, and are allowed, as TensorFlow makes arguments of a function of them, too."""
    short = [_argument(_short(leaf)) for leaf in leaves]
    plain = [re.sub(r"[.-]", "_", name).lower() for name in short]
    return _under([name if one == own else own for name, one, own in zip(short, plain, text.distinct(plain), strict=True)], leaves)


def _short(leaf: Leaf) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", leaf.name.removeprefix("x.").replace("]", ""))


def _under(names: Sequence[str], leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
    return tuple(Leaf(name, leaf.dtype, leaf.shape) for name, leaf in zip(names, leaves, strict=True))


def _argument(name: str) -> str:
    """A name that an argument of a function may have."""
    if not name[:1].isalnum():
        return f"x{name}"
    return f"{name}_" if keyword.iskeyword(name) or name == "self" else name


@dataclass(frozen=True)
class VersionFolder:
    """The versions of one model, each in a folder named by its number."""

    path: Path

    @property
    def numbers(self) -> list[int]:
        """Complete versions, the oldest first."""
        return sorted(number for number in self._entries() if (self.path / str(number) / FILE).is_file())

    @property
    def next_number(self) -> int:
        """The number after every entry that is one, complete or not."""
        return max(self._entries(), default=0) + 1

    def newest_holds(self, run: str, epoch: int, digest: str) -> ExportedModel | None:
        """The newest version, if it holds this snapshot; not one that can't be read."""
        with contextlib.suppress(LockstepError):
            newest = ExportedModel.read(self.path / str(self.numbers[-1])) if self.numbers else None
            return newest if newest and (newest.run, newest.epoch, newest.snapshot_sha256) == (run, epoch, digest) else None
        return None

    def _entries(self) -> list[int]:
        return [int(path.name) for path in self.path.iterdir() if VERSION.fullmatch(path.name)] if self.path.is_dir() else []
