"""Send large files to a host over its connection: with progress, resumed after an interruption, whole or not at all."""

import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from control.common.progress_line import Line
from trainer.common.files import sha256_file
from trainer.common.safe_text import printable

CHUNK = 8 * 2**20


@dataclass
class Upload:
    """One upload of several files to one host."""

    action: ActionBase
    show: Callable[[int, int], None]
    """Called with the bytes sent and the total."""

    def folder(self, local: Path, remote: str) -> None:
        """Send a folder of files (no subfolders), renamed into place when complete."""
        files = sorted(path for path in local.iterdir() if path.is_file())
        part = str(PurePosixPath(remote).with_name(f".part-{PurePosixPath(remote).name}"))
        self._send([(path, f"{part}/{path.name}") for path in files])
        self._shell(f"sync -f {shlex.quote(part)} && mv -T {shlex.quote(part)} {shlex.quote(remote)}", f"moving {remote} into place")

    def file(self, local: Path, remote: str) -> None:
        """Send one file, renamed into place when complete."""
        part = str(PurePosixPath(remote).with_name(f".part-{PurePosixPath(remote).name}"))
        self._send([(local, part)])
        self._shell(f"chmod 0640 {shlex.quote(part)} && mv -T {shlex.quote(part)} {shlex.quote(remote)}", f"moving {remote} into place")

    def _send(self, pairs: list[tuple[Path, str]]) -> None:
        sizes = self._sizes(remote for _, remote in pairs)
        total = sum(local.stat().st_size for local, _ in pairs)
        self._room(str(PurePosixPath(pairs[0][1]).parent), total - sum(sizes.values()))
        # An empty file has no write that would create it.
        self._shell(f"umask 027; touch -- {' '.join(shlex.quote(remote) for _, remote in pairs)}", "writing there")
        sent = 0
        for local, remote in pairs:
            size = local.stat().st_size
            begin = sizes.get(remote, 0)
            if begin > size:
                self._shell(f"rm -f {shlex.quote(remote)}", f"replacing {remote}")
                begin = 0
            sent += begin
            self.show(sent, total)
            with local.open("rb") as stream:
                stream.seek(begin)
                while chunk := stream.read(CHUNK):
                    self._shell(f"cat >> {shlex.quote(remote)}", f"writing {remote}", chunk)
                    sent += len(chunk)
                    self.show(sent, total)
        self._check(pairs)

    def _room(self, folder: str, wanted: int) -> None:
        """Refuse before the first byte if the upload would fill the disk."""
        listing = self._shell(f"df -Pk {shlex.quote(folder)}", f"free space of {folder}")
        free = _number((listing.split() or [""])[-3:][0], f"free space of {folder}") * 1024
        if wanted > free:
            raise AnsibleActionFail(
                f"{folder} has {free / 1e6:,.0f} MB free and {wanted / 1e6:,.0f} MB are to be sent there; remove what is not needed "
                "(datasets and code of old runs lie there), or set dfs_path to a larger disk"
            )

    def _check(self, pairs: list[tuple[Path, str]]) -> None:
        """Refuse files that a simultaneous upload has mixed up; the next try starts over."""
        names = " ".join(shlex.quote(remote) for _, remote in pairs)
        listing = self._shell(f"sha256sum -- {names}", "comparing digests").splitlines()
        digests = [line.lstrip("\\")[:64] for line in listing]
        if digests != [sha256_file(local) for local, _ in pairs]:
            self._shell(f"rm -f -- {names}", "removing the broken copy")
            raise AnsibleActionFail(
                f"{pairs[0][1]} arrived with a different digest (is another command sending it, too?). Fix: run this command again"
            )

    def _sizes(self, remotes: Iterable[str]) -> dict[str, int]:
        """Sizes of an interrupted upload's files; also creates the folders. Links do not count."""
        remotes = list(remotes)
        folders = " ".join(sorted({shlex.quote(str(PurePosixPath(remote).parent)) for remote in remotes}))
        names = " ".join(shlex.quote(remote) for remote in remotes)
        look = f'for f in {names}; do if [ -L "$f" ]; then rm -f "$f"; elif [ -e "$f" ]; then stat -c \'%s %n\' "$f" || exit 1; fi; done'
        listing = self._shell(f"umask 027; mkdir -p {folders} && {look}", folders)
        return {name: _number(size, name) for size, _, name in (line.partition(" ") for line in listing.splitlines())}

    def _shell(self, command: str, what: str, data: bytes | None = None) -> str:
        completed = self.action._low_level_execute_command(command, in_data=data, sudoable=False, executable="/bin/sh")
        if completed["rc"] != 0:
            error = completed["stderr"].strip()
            raise AnsibleActionFail(f"{what} failed: {error}. Fix: check free space, owner and mount (doctor.yml shows them)")
        return str(completed["stdout"])


def _number(answer: str, what: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", answer):
        raise AnsibleActionFail(f"{what}: the host answers {printable(answer, 80)!r}, which is no number of bytes")
    return int(answer)


def with_progress(action: ActionBase, what: str, host: str) -> Upload:
    """An upload that shows its progress on its own line."""
    line = Line()

    def show(sent: int, total: int) -> None:
        line.update(f"sending {what} to {host}: {sent / 1e6:,.0f} of {total / 1e6:,.0f} MB")
        if sent == total:
            line.end()

    return Upload(action, show)
