"""Compare what is published on the hosts' shared folder with the control node's, and send again what differs.

Code and manifest are compared by digest each time. All files of a dataset are compared by digest when first seen, and again when their
size or times differ from then. The times include ctime, which no writer can set.
"""

import hashlib
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from control.common import project
from control.remote.upload import with_progress
from trainer.common.files import read_json, sha256_file, write_json
from trainer.common.safe_text import printable
from trainer.data.manifest import FILE

SEEN = project.PRIVATE / "seen"
"""Stamps of the compared files, for each dataset on each shared folder."""
LOOK = """
for f in {hashed}; do test -f "$f" && printf 'sum %s %s\\n' "$(sha256sum < "$f" | cut -c 1-64)" "$f"; done
for f in {stamped}; do test -f "$f" && stat -L -c 'stamp %s_%.9Y_%.9Z %n' -- "$f"; done
true
"""


VALUE = re.compile("[0-9a-f]{64}|[-0-9._]{1,99}")
"""A digest, or times."""


@dataclass(frozen=True)
class Item:
    """A published item: a file, or a dataset's folder with its manifest's digest."""

    what: str
    local: Path
    remote: str
    sha256: str = ""
    """If empty, the local file's digest."""

    def part(self, name: str) -> "Item":
        """A file of this folder."""
        return Item(self.what, self.local / name, f"{self.remote}/{name}", self.sha256 if name == FILE else "")

    def parts(self) -> list["Item"]:
        """All files of this folder; only the manifest if the control node no longer has the dataset."""
        names = [path.name for path in self.local.iterdir() if path.is_file()] if self.local.is_dir() else []
        return [self.part(name) for name in sorted({FILE, *names})]


class SharedFolder:
    """The shared folder as one host sees it."""

    def __init__(self, action: ActionBase, host: str):
        self._action, self._host = action, host
        self.sent: list[str] = []
        """Files that were missing."""
        self.replaced: list[str] = []
        """Files whose bytes differed from the published ones."""

    def agree(self, files: Iterable[Item], dataset: Item | None = None, whole: bool = False) -> None:
        """Send what is not there as published.

        Args:
            files: compared by digest.
            dataset: its folder on the control node may be gone, as long as nothing is wrong.
            whole: read every byte of the dataset, even if sizes and times are unchanged.

        Raises:
            AnsibleActionFail: something is wrong there, and this machine can't replace it.
        """
        always = [*files, *([dataset.part(FILE)] if dataset else [])]
        parts = dataset.parts() if dataset else []
        sums, stamps = self._look(always, parts)
        if dataset and not stamps:
            always.pop()
            self._send_folder(dataset)
        stored = self._stamps_file(dataset) if dataset else None
        seen = dict(read_json(stored)) if stored and stored.is_file() else {}
        doubtful = [part for part in parts if stamps and (whole or stamps.get(part.remote) != seen.get(part.remote, ""))]
        sums |= self._look(doubtful, [])[0] if doubtful else {}
        fixed = [self._send_unless_there(item, sums) for item in {item.remote: item for item in [*always, *doubtful]}.values()]
        if stored and (stamps != seen or any(fixed)):
            write_json(stored, self._look([], parts)[1] if any(fixed) or not stamps else stamps)

    def warning(self) -> str:
        """Warning about replaced files, for the user, if any."""
        if not self.replaced:
            return ""
        return (
            f"warning: {', '.join(self.replaced)}: contents differ from what was published; sent again. Somebody else can write to that "
            "folder, or its disk is damaged. Fix: check its owner and mode (ls -l); see docs/concepts/security.md"
        )

    def _send_unless_there(self, item: Item, sums: Mapping[str, str]) -> bool:
        """Send a file unless it is there as published; returns whether it was sent."""
        remote_sha256, local_sha256 = sums.get(item.remote), sha256_file(item.local) if item.local.is_file() else ""
        if remote_sha256 == (item.sha256 or local_sha256):
            return False
        if not local_sha256 or local_sha256 != (item.sha256 or local_sha256):
            raise AnsibleActionFail(_lost(item, remote_sha256))
        (self.replaced if remote_sha256 else self.sent).append(item.remote)
        with_progress(self._action, item.what, self._host).file(item.local, item.remote)
        return True

    def _send_folder(self, dataset: Item) -> None:
        if not (dataset.local / FILE).is_file():
            raise AnsibleActionFail(_lost(dataset, None))
        self.sent.append(dataset.remote)
        with_progress(self._action, dataset.what, self._host).folder(dataset.local, dataset.remote)

    def _look(self, hashed: Iterable[Item], stamped: Iterable[Item]) -> tuple[dict[str, str], dict[str, str]]:
        """SHA-256 and stamps of those files that are readable there, by path, in one call."""
        words = {name: " ".join(shlex.quote(item.remote) for item in items) for name, items in (("hashed", hashed), ("stamped", stamped))}
        completed = self._action._low_level_execute_command(LOOK.format(**words), sudoable=False, executable="/bin/sh")
        if completed["rc"] != 0:
            raise AnsibleActionFail(f"{self._host}: looking at the shared folder failed: {completed['stderr'].strip()}")
        seen: dict[str, dict[str, str]] = {"sum": {}, "stamp": {}}
        for line in str(completed["stdout"]).splitlines():
            kind, _, rest = line.partition(" ")
            value, _, path = rest.partition(" ")
            if line and (kind not in seen or not VALUE.fullmatch(value)):
                raise AnsibleActionFail(f"{self._host}: looking at the shared folder: it answers {printable(line, 80)!r}")
            if line:
                seen[kind][path] = value
        return seen["sum"], seen["stamp"]

    def _stamps_file(self, dataset: Item) -> Path:
        return SEEN / f"{hashlib.sha256(f'{self._host} {dataset.remote}'.encode()).hexdigest()[:16]}.json"


def _lost(item: Item, actual: str | None) -> str:
    state = f"has SHA-256 {actual[:16]}..., and {item.sha256[:16]}... was published" if actual and item.sha256 else "is missing or changed"
    return (
        f"{item.remote} {state}, and this machine's own copy ({item.local}) is missing or changed, too. Fix: train with the same dataset "
        "and the same version of Lockstep, which publishes it again (a new run name is enough), or restore that copy from a backup"
    )
