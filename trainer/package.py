"""The trainer as one file: what is published to the nodes, named by its digest."""

import hashlib
import zipfile
from pathlib import Path

from trainer.files import replacing

PACKAGE = Path(__file__).parent
EPOCH = (1980, 1, 1, 0, 0, 0)


def sources() -> list[Path]:
    """Python files of the package, in a fixed order."""
    return sorted(path for path in PACKAGE.rglob("*.py") if "analysis" not in path.relative_to(PACKAGE).parts)


def digest() -> str:
    """Hex SHA-256 over names and contents, shortened to 16 characters."""
    state = hashlib.sha256()
    for path in sources():
        state.update(f"{path.relative_to(PACKAGE)}\0".encode())
        state.update(hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()[:16]


def build(folder: Path) -> Path:
    """Write `trainer-<digest>.zip`, which Python imports as it is; the same bytes each time."""
    archive = folder / f"trainer-{digest()}.zip"
    if not archive.is_file():
        with replacing(archive) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as stream:
            for path in sources():
                info = zipfile.ZipInfo(str(Path("trainer") / path.relative_to(PACKAGE)), EPOCH)
                stream.writestr(info, path.read_bytes(), compress_type=zipfile.ZIP_DEFLATED)
    return archive
