"""Check of Lockstep on a machine's NVIDIA GPUs: speed, memory, and the weights beside a CPU's.

    .venv/bin/python benchmarks/scripts/gpu_check.py [--python PYTHON] [--seconds 300] [--results FOLDER] [--cpu]

benchmarks/gpu_check.sh installs what this needs and calls it. Each row trains once, by train.yml, with an inventory in a temporary folder;
PYTHON is what workers run (its packages: requirements/node-gpu.txt). NVIDIA's TF32 is off where weights are compared. With --cpu, CPUs
train in all rows, which tests this program where there is no GPU. Once `--seconds` have passed, what is left is not run.
"""

import contextlib
import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.shared import script
from control.common import project, text

LIMIT = 1e-3
"""Largest relative difference of weights that counts as rounding after 192 steps; between one and two workers on CPUs it is 6e-6."""
EPOCHS = 3
SETTINGS = f"set=train.global_batch=64,train.epochs={EPOCHS},recovery.max_restarts=0,reduction.name=packed,reduction.transport=tensorflow"
CNN = ("config=task_cnn", "dataset=benchmarks/node/gpu_models.py:pictures")
TABLE = ("model=benchmarks/node/gpu_models.py:build", "dataset=benchmarks/node/gpu_models.py:table")
EXACT = {"NVIDIA_TF32_OVERRIDE": "0"}
COLLECTIVE = {**EXACT, "TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "collective_param_resolver_local=1"}
"""Make TensorFlow write into worker.log which implementation of a collective it takes."""
FOUND = "import tensorflow as tf; print(tf.__version__, len(tf.config.list_physical_devices('GPU')))"
OK, NOT_RUN = "ok", "not run: no time left"
POLL_S, ENDING_S = 0.5, 15.0
HEADER = ("what", "images/s", "GPU memory MB", "weights beside CPU's", "result")
CAUSES = ("TensorFlow finds", "error:", "Error", "[FAIL]", "FAILED")
"""Marks of the line of a failed command's output that says most, the best first."""


def main() -> None:
    """Check, print, write; exit code 1 if a row is not as it should be."""
    parser = script.parser(__doc__, seconds=300)
    parser.add_argument("--python", default=sys.executable, help="Python of the workers")
    parser.add_argument("--results", type=Path, help="folder to write to; default: benchmarks/results/gpu-check-<date>")
    parser.add_argument("--cpu", action="store_true", help="CPUs in all rows")
    given = parser.parse_args()
    # A shell starts what it leaves in the background with SIGINT ignored, and commands inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    end = time.monotonic() + given.seconds
    listed = [] if given.cpu else gpus_of(nvidia_smi("-L"))
    if not given.cpu and not listed:
        sys.exit("nvidia-smi lists no GPU; --cpu tests this program without one")
    version, found = tensorflow_gpus(given.python, end)
    if not given.cpu and found != len(listed):
        sys.exit(f"TensorFlow {version} of {given.python} finds {found} of the {len(listed)} GPUs that nvidia-smi lists: an old driver?")
    rows = []
    with tempfile.TemporaryDirectory(prefix="lockstep-gpu-check-") as folder:
        check = Check(Path(folder), given.python, end)
        try:
            for trial in trials(len(listed)):
                print(f"{trial.what} ...", file=sys.stderr, flush=True)
                rows.append(check.row(trial))
        finally:
            check.clean()
            about = {"gpus": listed, "tensorflow": version, "date": time.strftime("%Y-%m-%d"), "limit": LIMIT}
            results = project.ROOT / "benchmarks" / "results"
            write_results(given.results or results / time.strftime("gpu-check-%Y%m%d-%H%M%S"), rows, about)
    print(text.table(HEADER, [row.cells for row in rows]))
    sys.exit(any(row.result != OK for row in rows))


def nvidia_smi(*options: str) -> str:
    """Output of nvidia-smi; empty where there is none."""
    try:
        return subprocess.run(["nvidia-smi", *options], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def gpus_of(listed: str) -> list[str]:
    """GPUs' names in the output of `nvidia-smi -L`; parts of one (MIG) are no GPUs of their own."""
    lines = (line for line in listed.splitlines() if line.startswith("GPU "))
    return [line.partition(": ")[2].partition(" (UUID")[0] for line in lines]


def tensorflow_gpus(python: str, end: float) -> tuple[str, int]:
    """TensorFlow's version and how many GPUs it finds."""
    environment, left = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, end - time.monotonic()
    try:
        answer = subprocess.run([python, "-c", FOUND], env=environment, check=True, capture_output=True, text=True, timeout=left)
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"{python}: TensorFlow can't be imported: {cause(getattr(error, 'stderr', '') or str(error))}")
    version, count = answer.stdout.split()
    return version, int(count)


@dataclass(frozen=True)
class Trial:
    """A training, or a refusal."""

    name: str
    what: str
    data: tuple[str, ...]
    """The model and its data, as `-e` takes them."""
    gpus: int = 0
    workers: int = 1
    reference: str = ""
    """The trial whose weights it must have."""
    environment: Mapping[str, str] = field(default_factory=lambda: EXACT)
    refused: str = ""
    """The sentence with which it must fail, a regular expression."""
    preflight: bool = False

    def inventory(self, folder: Path, python: str) -> dict[str, Any]:
        """An inventory of this machine. Workers share a GPU where their addresses differ: GPUs are counted by address."""
        every = {
            "ansible_connection": "local",
            "ansible_python_interpreter": "{{ ansible_playbook_python }}",
            "worker_port": "auto",
            "worker_root": f"{folder}/{{{{ inventory_hostname }}}}",
            "worker_python": python,
            "worker_caches": f"{folder}/caches",
            "worker_environment": dict(self.environment),
            "dfs_kind": "local",
            "dfs_path": f"{folder}/dfs",
            "default_workers": self.workers,
            "control_packs": f"{folder}/dfs/datasets",
            "gpus": self.gpus,
        }
        hosts = {f"worker{number}": {"worker_address": f"127.0.0.{number}"} for number in range(1, self.workers + 1)}
        return {"workers": {"hosts": hosts, "vars": every}}


def trials(gpus: int) -> list[Trial]:
    """Trials for a machine with this many GPUs; with 0, all of them run on CPUs."""
    one, device, more = min(gpus, 1), "one GPU" if gpus else "CPU again", gpus + 1
    several = [Trial("two", "task_cnn, gpus: 2", CNN, 2, 1, "cpu", COLLECTIVE)] if gpus > 1 else []
    default = [Trial("tf32", "task_cnn, one GPU, TF32 as it comes", CNN, 1, environment={})] if gpus else []
    before, by_worker = rf"GPUs [^\[]*\(limit: at least {more}\)", f"gpus={more}: TensorFlow finds {gpus} on this host"
    return [
        Trial("cpu", "task_cnn, CPU (gpus: 0)", CNN),
        Trial("one", f"task_cnn, {device} (gpus: {one})", CNN, one, reference="cpu"),
        Trial("shared", f"task_cnn, two workers sharing {device}", CNN, one, 2, "cpu", COLLECTIVE),
        Trial("table-cpu", "table, CPU (gpus: 0)", TABLE),
        Trial("table", f"table, {device} (gpus: {one})", TABLE, one, reference="table-cpu"),
        Trial("preflight", f"gpus: {more}, refused before the start", CNN, more, refused=before, preflight=True),
        Trial("refused", f"gpus: {more}, refused by the worker", CNN, more, refused=by_worker),
        *several,
        *default,
    ]


@dataclass(frozen=True)
class Row:
    """Result of a trial."""

    what: str
    result: str
    images_per_s: float | None = None
    memory_mb: int | None = None
    difference: float | None = None

    @property
    def cells(self) -> list[str]:
        """The cells of a table's row."""
        numbers = ((self.images_per_s, ",.0f"), (self.memory_mb, ","), (self.difference, ".1e"))
        return [self.what, *("-" if value is None else format(value, how) for value, how in numbers), self.result]


class Check:
    """Runs trials with inventories and workers in a folder."""

    def __init__(self, folder: Path, python: str, end: float):
        """Workers run `python`; nothing starts after `end`, by the monotonic clock."""
        self._folder, self._python, self._end = folder, python, end
        self._runs: dict[str, Path] = {}

    def row(self, trial: Trial) -> Row:
        """Run a trial."""
        run = self._runs[trial.name] = project.RUNS / f"{self._folder.name}-{trial.name}"
        inventory = self._folder / f"{trial.name}.yml"
        inventory.write_text(json.dumps(trial.inventory(self._folder, self._python)), encoding="utf-8")
        with Memory() as memory:
            code, output = self._train(trial, inventory, run.name)
        if code is None:
            return Row(trial.what, NOT_RUN)
        if trial.refused:
            as_meant = code and re.search(trial.refused, unwrapped(output))
            return Row(trial.what, OK if as_meant else f"FAILED: not refused as expected: {cause(output)}")
        if code:
            return Row(trial.what, f"FAILED: {cause(output)}")
        with (run / "history.csv").open(encoding="utf-8") as stream:
            # The last epoch's speed: the first contains what is done once.
            speed = float(list(csv.DictReader(stream))[-1]["images_per_s"])
        row = Row(trial.what, OK, speed, memory.used if trial.gpus else None)
        return self._compared(trial, run, row) if trial.reference else row

    def _compared(self, trial: Trial, run: Path, row: Row) -> Row:
        reference = snapshot(self._runs[trial.reference])
        if not reference.is_file():
            return replace(row, result="not compared: there are no weights of the CPU's")
        apart = difference(reference, snapshot(run))
        logs = "".join(path.read_text(errors="replace") for path in run.glob("workers/*/worker.log"))
        what = f"{row.what} ({taken})" if (taken := collective(logs)) else row.what
        # A NaN is no rounding, either.
        return replace(row, what=what, difference=apart, result=OK if apart <= LIMIT else "FAILED: weights differ by more than rounding")

    def _train(self, trial: Trial, inventory: Path, run: str) -> tuple[int | None, str]:
        """Exit code and output of the command; no code if the time is over."""
        variables = [*trial.data, f"run={run}", f"preflight={str(trial.preflight).lower()}", SETTINGS]
        words = ["train.yml", "-i", str(inventory), *(word for one in variables for word in ("-e", one))]
        if (left := self._end - ENDING_S - time.monotonic()) <= 0:
            return None, ""
        with script.Commands().start(*words, session=True) as started:
            try:
                output = started.communicate(timeout=left)[0]
                return started.returncode, output
            except subprocess.TimeoutExpired:
                return None, ""
            finally:
                _end_command(started)

    def clean(self) -> None:
        """End what still runs for the folder, and remove this check's runs."""
        for process in processes(str(self._folder)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for run in self._runs.values():
            shutil.rmtree(run, ignore_errors=True)


class Memory:
    """Most memory that programs took of all GPUs while this was open, MB: beyond what was taken before."""

    def __init__(self) -> None:
        self.used: int | None = None
        self._done = threading.Event()
        self._watch = threading.Thread(target=self._watching, daemon=True)

    def __enter__(self) -> "Memory":
        """Begin to look."""
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Look no more."""
        self._done.set()
        self._watch.join()

    def _watching(self) -> None:
        before = None
        while numbers := nvidia_smi("--query-gpu=memory.used", "--format=csv,noheader,nounits").split():
            if not all(number.isdecimal() for number in numbers):
                return
            now = sum(map(int, numbers))
            before = now if before is None else before
            self.used = max(self.used or 0, now - before)
            if self._done.wait(POLL_S):
                return


def snapshot(run: Path) -> Path:
    """A run's weights after all steps."""
    return run / "checkpoints" / f"epoch-{EPOCHS:04}.keras"


def difference(reference: Path, other: Path) -> float:
    """Largest difference of a weight of two snapshots, relative to the largest in its array."""
    import numpy as np

    ours, theirs = _weights(other), _weights(reference)
    if ours.keys() != theirs.keys():
        return float("inf")
    apart = [np.abs(ours[name] - theirs[name]).max() / max(np.abs(theirs[name]).max(), np.finfo(np.float32).tiny) for name in theirs]
    return float(np.max(apart)) if apart else float("inf")


def _weights(file: Path) -> dict[str, Any]:
    """Arrays of a snapshot's layers, by name."""
    import h5py

    arrays: dict[str, Any] = {}

    def take(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            arrays[name] = item[()]

    with zipfile.ZipFile(file) as packed, h5py.File(io.BytesIO(packed.read("model.weights.h5"))) as content:
        content["layers"].visititems(take)
    return arrays


def collective(log: str) -> str:
    """Collectives that TensorFlow took, by its own words in a log."""
    return ", ".join(sorted({line.split()[-1] for line in log.splitlines() if "AssignCollectiveType" in line and line.endswith("Reduce")}))


def unwrapped(output: str) -> str:
    """Text without its line breaks."""
    return " ".join(output.split())


def cause(output: str) -> str:
    """The line of a failed command's output that says most."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for mark in CAUSES for line in lines if mark in line), lines[-1] if lines else "no output")[:200]


def _end_command(started: "subprocess.Popen[str]") -> None:
    """End a command as Ctrl-C does, which takes its launch back; kill it if it does not end."""
    if started.poll() is None:
        os.killpg(started.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(ENDING_S)
    if started.poll() is None:
        os.killpg(started.pid, signal.SIGKILL)


def processes(folder: str, proc: Path = Path("/proc")) -> Iterator[int]:
    """Processes that a folder's path was given to; tmux's server may have others' sessions, and ends with its last."""
    for entry in proc.iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
                if folder in words and not (entry / "comm").read_text().startswith("tmux"):
                    yield int(entry.name)


def write_results(folder: Path, rows: Sequence[Row], about: Mapping[str, Any]) -> None:
    """Write table.md and results.json."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [" | ".join(cells) for cells in [HEADER, ["---"] * len(HEADER), *(row.cells for row in rows)]]
    (folder / "table.md").write_text("".join(f"| {line} |\n" for line in lines), encoding="utf-8")
    (folder / "results.json").write_text(json.dumps({**about, "rows": [asdict(row) for row in rows]}, indent=2) + "\n", encoding="utf-8")
    print(f"results: {folder}", file=sys.stderr)


if __name__ == "__main__":
    main()
