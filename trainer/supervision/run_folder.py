"""The run directory of a worker: a removal or move during training is noticed, and the launch's files are restored."""

import contextlib
import os
import stat
import sys
from pathlib import Path

from trainer.common.files import make_folder, replacing
from trainer.rundir.metrics_log import METRICS, WORKER_LOG

LAUNCHED = ("tf_config.json", "run_worker.sh", "secret")
OF_ALL = ("config.yml", "cluster.json")
"""Files that a launch writes into a worker's folder (LAUNCHED) and beside the folders of all workers."""


class RunFolder:
    """A run directory on this host, with the small files of its launch."""

    def __init__(self, own: Path):
        """Read the files of the launch; `own` is the worker's part of the run directory."""
        self._own = own
        named = [*(own / name for name in LAUNCHED), *(own.parents[1] / name for name in OF_ALL)]
        # Supervisors that are threads of one process share its working directory.
        self._is_here = Path.cwd() == own.resolve()
        self._files = {path: (stat.S_IMODE(path.stat().st_mode), path.read_bytes()) for path in named if path.is_file()}

    def is_lost(self) -> bool:
        """Return whether the folder was removed, moved away or emptied; a disk that does not answer does not count as a loss."""
        return any(map(_is_gone, (*self._files, self._own / METRICS)))

    def restore(self) -> None:
        """Restore the launch's files, and write to this folder from now on; raises OSError.

        A process whose working directory is the removed folder moves to the new one, with its output.
        """
        make_folder(self._own)
        for path, (mode, content) in self._files.items():
            if _is_gone(path):
                with replacing(path, mode) as part:
                    part.write_bytes(content)
        if self._is_here:
            os.chdir(self._own)
            self._write_log()
            with contextlib.suppress(FileExistsError):
                (self._own / "tmp").mkdir(mode=0o700)

    def _write_log(self) -> None:
        """Send this process' output to the new log, if it goes to the removed one."""
        sys.stdout.flush()
        sys.stderr.flush()
        for stream in (1, 2):
            status = os.fstat(stream)
            if stat.S_ISREG(status.st_mode):
                handle = os.open(self._own / WORKER_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
                os.dup2(handle, stream)
                os.close(handle)


def _is_gone(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
