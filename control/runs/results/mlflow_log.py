"""Logging of a run's configuration, curves and end in MLflow by its own client, for users who keep their experiments there.

The client is not part of Lockstep; it reads MLflow's usual variables (`MLFLOW_TRACKING_TOKEN`, ...). A continued run stays one run in
MLflow, and an epoch is logged once.
"""

import importlib.util
import time
from typing import Any
from urllib.parse import urlsplit

from control.runs.results.hyperparameters import hyperparameters
from control.runs.results.run_folder import RunFolder
from trainer.common.errors import ConfigError
from trainer.common.files import read_json, write_json
from trainer.rundir.launch_record import training

EXPERIMENT = "lockstep"
ENDS = {"SUCCEEDED": "FINISHED", "FAILED": "FAILED", "CANCELLED": "KILLED", "PREEMPTED": "KILLED"}
FILE = "mlflow.json"
"""File in a run directory with the place and id under which the run is logged, and the last logged epoch."""
LONGEST = 6000
"""MLflow's limit for a parameter's value, characters."""
AT_ONCE = 100
"""MLflow's limit of parameters in one request; it takes 1,000 metrics."""


def check_uri(uri: str | None) -> None:
    """Refuse `telemetry.mlflow` before any host is touched.

    Raises:
        ConfigError: it contains a password, which would be written to config.yml, or MLflow's client is not installed here.
    """
    if uri is None:
        return
    if urlsplit(uri).password:
        raise ConfigError(
            "telemetry.mlflow: it holds a password, and configurations are kept with their runs; "
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead"
        )
    if importlib.util.find_spec("mlflow") is None:
        raise ConfigError(f"telemetry.mlflow={uri}: MLflow's client is not installed here: .venv/bin/python -m pip install mlflow-skinny")


def log(run: RunFolder, uri: str | None) -> str:
    """Log a run's new records.

    Returns:
        The reason why MLflow did not accept them, and the fix; empty on success or without a `uri`. Such a failure does not fail the run.
    """
    try:
        check_uri(uri)
        if uri:
            _log(run, uri)
    # The client raises its own errors, those of its connection, and those of its server.
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        again = f"Try again: ansible-playbook train.yml -e run={run.name}"
        return f"telemetry.mlflow={uri}: {run.name} is not logged there ({reason[0][:300]}). {again}"
    return ""


def place(run: RunFolder) -> str:
    """Place where a run is logged; empty if it is not logged."""
    logged = _logged(run)
    return f"{logged['uri']}, run {logged['run_id']}" if logged.get("epoch") else ""


def _logged(run: RunFolder) -> dict[str, Any]:
    path = run.path / FILE
    return dict(read_json(path)) if path.is_file() else {}


def _log(run: RunFolder, uri: str) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    client, summary = MlflowClient(uri), run.summary
    logged = _logged(run)
    if logged.get("uri") != uri:
        logged = {"uri": uri, "run_id": _begun(client, run), "epoch": 0}
        write_json(run.path / FILE, logged)
    now = int(time.time() * 1000)
    for row in run.history:
        if row["epoch"] > logged["epoch"]:
            values = [Metric(name, value, now, row["epoch"]) for name, value in row.items() if isinstance(value, float)]
            client.log_batch(logged["run_id"], metrics=values)
            logged["epoch"] = row["epoch"]
            write_json(run.path / FILE, logged)
    for name in ("weights_sha256", "images_per_s", "seconds_total", "restarts"):
        if name in summary.written:
            client.set_tag(logged["run_id"], f"lockstep.{name}", str(summary.written[name]))
    client.set_terminated(logged["run_id"], ENDS.get(str(summary.state), "FAILED"))


def _begun(client: Any, run: RunFolder) -> str:
    """Id of a new run, with its configuration as parameters."""
    from mlflow.entities import Param

    experiment = client.get_experiment_by_name(EXPERIMENT)
    number = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT)
    hosts = run.record.hosts
    created = client.create_run(number, run_name=run.name, tags={"lockstep.hosts": ", ".join(host.name for host in hosts)})
    values = [Param(name, str(value)[:LONGEST]) for name, value in hyperparameters(run.config, len(training(hosts))).items()]
    for begin in range(0, len(values), AT_ONCE):
        client.log_batch(created.info.run_id, params=values[begin : begin + AT_ONCE])
    return str(created.info.run_id)
