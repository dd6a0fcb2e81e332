"""Environment variables that the inventory sets for a host's worker, and how its start script gets them."""

import re
import shlex
from collections.abc import Mapping
from typing import Any

from trainer.common.errors import ConfigError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OURS = (
    "CUDA_VISIBLE_DEVICES",
    "KERAS_HOME",
    "NUMBA_CACHE_DIR",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHONPATH",
    "TF_CONFIG",
)
"""Variables that a worker's start script sets."""
SHELL = re.compile(r"IFS|PS4|(E?U|PP)ID|SHELLOPTS|BASH.*")
"""Variables that would affect the start script itself."""
LOADING = re.compile(r"PATH|LD_.*|PYTHON.*")
"""Variables that decide which programs and libraries run: they depend on the host, so no configuration may set them."""


def check_environment(given: Mapping[str, str], key: str, of_a_host: bool = False) -> None:
    """Refuse (ConfigError) invalid and reserved names; the inventory (`of_a_host`) may also say where Python and libraries are."""
    for name, value in given.items():
        if not NAME.fullmatch(name):
            raise ConfigError(f"{key}: {name!r} is no name of an environment variable; it must be letters, digits and _, no digit first")
        if "\0" in value:
            raise ConfigError(f"{key}: the value of {name} has a NUL character, which no environment variable can hold; leave it out")
        if name in OURS or SHELL.fullmatch(name):
            raise ConfigError(f"{key}: {name} is set by Lockstep's own start script; leave it out")
        if LOADING.fullmatch(name) and not of_a_host:
            raise ConfigError(
                f"{key}: {name} decides which programs a host runs; set it in the inventory, in worker_environment of the host"
            )


def of_host(given: Any, host: str) -> dict[str, str]:
    """A host's `worker_environment` as texts; ConfigError if it is no mapping of names to texts, or has a name that may not be set."""
    key = f"worker_environment of {host}"
    texts = as_texts(given)
    if texts is None:
        raise ConfigError(f"{key}: {given!r} is not a mapping of names to texts or numbers, as in {{TF_ENABLE_ONEDNN_OPTS: 0}}")
    check_environment(texts, key, of_a_host=True)
    return texts


def as_texts(given: Any) -> dict[str, str] | None:
    """A mapping with numbers converted to texts; None if it is not a mapping of names to texts or numbers.

    Booleans are refused: YAML no longer tells which of `on`, `yes` and `true` was written.
    """
    if not isinstance(given, Mapping):
        return None
    fits = all(
        isinstance(name, str) and isinstance(value, str | int | float) and not isinstance(value, bool) for name, value in given.items()
    )
    return {name: str(value) for name, value in given.items()} if fits else None


def of_worker(given: Mapping[str, str], caches: str) -> dict[str, str]:
    """Variables of a worker whose inventory and configuration set the `given` ones, and whose caches are in a folder."""
    return {
        "KERAS_HOME": f"{caches}/keras",
        "NUMBA_CACHE_DIR": f"{caches}/kernels",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONUNBUFFERED": "1",
        # Lockstep's own threads already call NumPy's products in parallel.
        "OPENBLAS_NUM_THREADS": "1",
        **given,
    }


def assignments(given: Mapping[str, str], caches: str) -> list[str]:
    """`of_worker` as `NAME=value` for a shell, each quoted to a single word; ConfigError if a given name is invalid or may not be set."""
    check_environment(given, "environment", of_a_host=True)
    return [f"{name}={shlex.quote(str(value))}" for name, value in of_worker(given, caches).items()]


def exports(given: Mapping[str, str], caches: str) -> str:
    """`export` lines for a shell script."""
    return "\n".join(f"export {assignment}" for assignment in assignments(given, caches))
