"""Files that a run's hosts read, published on this machine: dataset, trainer's code, a user's script, weights. The fact `published`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from control.remote.trainer_package import TRAINER
from trainer.common.errors import LockstepError
from trainer.common.files import sha256_file


@dataclass(frozen=True)
class PublishedFile:
    """A file that hosts read besides the trainer's code."""

    local: str
    name: str
    """Name beside the code, where hosts read it."""
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Published:
    """The dataset and files of one launch; what does not exist is empty."""

    digest: str | None = None
    """Digest of the dataset; None: a script or a prediction, which has none."""
    folder: str = ""
    """The dataset's."""
    manifest: str = ""
    """Digest of the dataset's manifest; empty if an early version launched the run."""
    code: str = ""
    """The trainer's archive."""
    code_sha256: str = ""
    others: Mapping[str, PublishedFile] = field(default_factory=dict)
    """By kind: the archive of a `script`, a file of `weights`."""

    @classmethod
    def trainer(cls, packs: Path) -> "Published":
        """The trainer of this version, beside the folder of published datasets; no dataset."""
        archive = TRAINER.build(packs.parent / "code")
        return cls(code=str(archive), code_sha256=sha256_file(archive))

    @classmethod
    def launched(cls, run: Mapping[str, Any], packs: Path) -> "Published":
        """The dataset and code of a launched run.

        Args:
            run: its name `run`, `dataset`, `code` and the code's digest; launches of an early version have no digest.
            packs: folder of published datasets.

        Raises:
            LockstepError: the code's digest is unknown.
        """
        code, dataset = packs.parent / "code" / run["code"], run["dataset"]
        if run["code"] == TRAINER.file_name(TRAINER.sha256()):
            TRAINER.build(code.parent)
        sha256 = run.get("code_sha256") or (sha256_file(code) if code.is_file() else "")
        if not sha256:
            raise LockstepError(
                f"run={run['run']}: an earlier version launched it and recorded no digest of its code, so the shared folder's copy can't "
                f"be checked. Fix: continue the training, which publishes the code again: ansible-playbook train.yml -e run={run['run']} "
                "-e epochs=N"
            )
        folder = str(packs / dataset["folder_name"])
        return cls(digest=dataset["digest"], folder=folder, manifest=dataset.get("manifest", ""), code=str(code), code_sha256=sha256)

    @property
    def name(self) -> str:
        """The dataset's folder in that of all datasets, also on the shared file system."""
        return Path(self.folder).name

    @property
    def code_name(self) -> str:
        """The archive's name, likewise."""
        return Path(self.code).name
