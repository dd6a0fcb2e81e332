"""A process beside a worker that has already imported TensorFlow, and becomes the next worker when it is told to."""

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence


class Standby:
    """Such a process; see `trainer.standby` for what runs in it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]):
        """Start it with `--pipe` and `--parent`; call from the main thread, whose end would end it."""
        reader, self._writer = os.pipe()
        words = [*command, "--pipe", str(reader), "--parent", str(os.getpid())]
        self._process = subprocess.Popen(words, env=dict(environment), pass_fds=[reader])
        os.close(reader)
        self.pid = self._process.pid

    def become(self, arguments: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes] | None":
        """Let it run `python -m trainer ARGUMENTS` in this environment; None if it is gone, or does not listen."""
        order = json.dumps({"arguments": list(arguments), "environment": dict(environment)}).encode()
        os.set_blocking(self._writer, False)
        try:
            ordered = self._process.poll() is None and os.write(self._writer, order) == len(order)
        except OSError:
            ordered = False
        os.close(self._writer)
        if not ordered:
            self._kill()
        return self._process if ordered else None

    def end(self) -> None:
        """End it."""
        os.close(self._writer)
        self._kill()

    def _kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
