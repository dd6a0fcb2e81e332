"""Code as one file, published to the nodes under its digest. Python imports it directly."""

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from control.common.project import ROOT
from trainer.common.files import replacing

EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Archive:
    """Whole folders of the project, Python files only, and their parent packages."""

    name: str
    folders: tuple[str, ...]
    root: Path = ROOT
    flat: str = ""
    """A folder whose files are at the archive's root, where they import each other by name."""

    def sources(self) -> list[Path]:
        """Files relative to the project, in a fixed order."""
        folders = [Path(folder) for folder in self.folders]
        files = {path.relative_to(self.root) for folder in folders for path in (self.root / folder).rglob("*.py")}
        return sorted(files.union(parent / "__init__.py" for folder in folders for parent in folder.parents if parent.name))

    def files(self) -> dict[str, Path]:
        """All files by their name in the archive."""
        flat = {path.name: path for path in sorted((self.root / self.flat).glob("*.py"))} if self.flat else {}
        return flat | {str(path): self.root / path for path in self.sources()}

    def contents(self) -> bytes:
        """The archive's bytes."""
        return zipped(self.files())

    def sha256(self) -> str:
        """Full hex SHA-256 of the archive, which a host compares."""
        return hashlib.sha256(self.contents()).hexdigest()

    def file_name(self, sha256: str) -> str:
        """File name of the archive with that SHA-256."""
        return file_name(self.name, sha256)

    def build(self, folder: Path) -> Path:
        """Write the archive into a folder, unless it is there; always the same bytes."""
        return write_archive(folder, self.name, self.contents())


def zipped(files: Mapping[str, Path]) -> bytes:
    """An archive of files by their name in it; uncompressed, so that it does not depend on this machine's compression library."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, path in files.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), path.read_bytes())
    return stream.getvalue()


def file_name(name: str, sha256: str) -> str:
    """File name of an archive with that SHA-256."""
    return f"{name}-{sha256[:16]}.zip"


def write_archive(folder: Path, name: str, data: bytes) -> Path:
    """Write an archive's bytes into a folder under their digest, unless they are there."""
    path = folder / file_name(name, hashlib.sha256(data).hexdigest())
    if not path.is_file() or path.read_bytes() != data:
        with replacing(path) as part:
            part.write_bytes(data)
    return path


TRAINER = Archive("trainer", ("trainer",))
