"""The model of a plan, examined in a separate process: parameters, optimizer, loss and metrics, initial weights."""

import contextlib
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.remote import trainer_package
from control.runs.planning.plan_request import Request
from trainer.checkpoint import starting_weights
from trainer.common.errors import ConfigError, LockstepError, refusal
from trainer.common.files import read_json, write_json
from trainer.config.schema import Config
from trainer.data import transform
from trainer.data.spec import Spec, of_images


def initial_weights(config: Config, asked: str | None, code: Path, started: Path | None) -> dict[str, Any] | None:
    """Path of the file of `train.weights` on this machine: the `asked` one, or in the folder `code`; None if no worker will read it.

    Raises:
        ConfigError: the file is gone before the run has a state.
    """
    given = config.train.weights
    if given is None:
        return None
    name = f"weights-{given['sha256'][:16]}{starting_weights.suffix(given['file'])}"
    local = Path(asked).expanduser() if asked else code / name
    if local.is_file():
        return {"local": str(local.resolve()), "name": name, "file": given["file"], "sha256": given["sha256"]}
    if started is None:
        raise ConfigError(f"train.weights: {given['file']} is not known here; give the file: -e weights=FILE")
    return None


@contextlib.contextmanager
def warned(warnings: Sequence[str]) -> Iterator[None]:
    """Add warnings about the examples to a refusal of the model, since they may be the cause."""
    try:
        yield
    except LockstepError as error:
        raise type(error)("\n".join([str(error), *warnings])) from None


@dataclass(frozen=True)
class Examined:
    """The model of a plan."""

    size: dict[str, int]
    """Parameters: `total` and `trainable`."""
    compiled: dict[str, Any] | None
    """Optimizer, loss and metrics with which the user's function compiled the model."""
    takes: int | None
    """Number of classes of the model's output, if known."""
    left: list[str]
    """Layers without weights in the file of initial weights."""
    warnings: list[str]


def examine(config: Config, classes: int, request: Request, spec: dict[str, Any] | None, weights: dict[str, Any] | None) -> Examined:
    """Build the model in a separate process, or look up the cached result."""
    found = _parameters(config, classes, request, spec, weights)
    compiled, takes = found.pop("compiled", None), found.pop("takes", None)
    left, warnings = found.pop("left", []), found.pop("warnings", [])
    return Examined(found, compiled, takes, left, warnings)


def _parameters(
    config: Config, classes: int, request: Request, spec: dict[str, Any] | None = None, weights: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Exact parameter counts, optimizer, loss and metrics, cached by model, examples and code: importing Keras takes seconds."""
    size = list(config.data.image_size)
    own: dict[str, Any] = {"section": config.model, "own_callbacks": config.train.callbacks, "skip_mismatch": config.train.skip_mismatch}
    own |= {name: getattr(config.train, name) for name in ("last_layers", "optimizer_state")} | {"by_name": config.train.weights_by_name}
    own |= {"weights": weights and {**(config.train.weights or {}), "path": weights["local"]}}
    if config.train.class_weight:
        own["fed"] = transform.weighed(config, of_images(size) if spec is None else Spec.from_json(spec)).to_json()
    own |= {"size": size, "classes": classes, "spec": spec}
    key = hashlib.sha256(json.dumps({**own, "code": _models_digest()}, sort_keys=True).encode()).hexdigest()[:16]
    entry = request.parameter_cache / f"{key}.json"
    if entry.is_file():
        return dict(read_json(entry))
    argv = [sys.executable, "-m", "control", "parameters"]
    completed = subprocess.run(argv, input=json.dumps(own), capture_output=True, text=True, check=False)
    if completed.returncode != 0:
        last = "\n".join(completed.stderr.strip().splitlines()[-5:])
        raise LockstepError(refusal(completed.stderr) or f"model {config.model['name']}: can't be built:\n{last}")
    counts: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    if request.write:
        write_json(entry, counts)
    return counts


def _models_digest() -> str:
    state = hashlib.sha256()
    for path in (
        *sorted((trainer_package.TRAINER.root / "trainer" / "models").glob("*.py")),
        trainer_package.TRAINER.root / "trainer" / "step" / "build_step.py",
        *(Path(__file__).with_name(name) for name in ("examine_model.py", "model_errors.py")),
    ):
        state.update(path.read_bytes())
    return state.hexdigest()
