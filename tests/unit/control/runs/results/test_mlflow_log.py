"""A run in MLflow, by MLflow's own client into a folder: what is logged, once, and what is refused."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from control.runs.results import mlflow_log
from control.runs.results.run_folder import RunFolder
from trainer.common.errors import ConfigError


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run directory of two epochs."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.yml").write_text("optimizer: {learning_rate: 0.1}\nmodel: {name: own, source: 'a\n\n  b'}\n")
    (folder / "cluster.json").write_text(json.dumps({"hosts": [{"name": "one"}, {"name": "two"}]}))
    summary = {"state": "SUCCEEDED", "weights_sha256": "ab" * 32, "restarts": 0}
    (folder / "summary.json").write_text(json.dumps(summary))
    write_history(folder, 2)
    return RunFolder(folder)


def write_history(folder, epochs):
    rows = [f"{epoch},{1 / epoch},0.5,0.01,3.0,100.0" for epoch in range(1, epochs + 1)]
    (folder / "history.csv").write_text("\n".join(["epoch,loss,accuracy,learning_rate,seconds,images_per_s", *rows]) + "\n")


def client(uri):
    from mlflow import MlflowClient

    return MlflowClient(uri)


def test_continued_run_is_one_run_with_epochs_once(run, tmp_path):
    uri = f"file://{tmp_path}/store"
    assert mlflow_log.log(run, uri) == ""
    write_history(run.path, 3)
    assert mlflow_log.log(run, uri) == ""
    store = client(uri)
    (there,) = store.search_runs([store.get_experiment_by_name("lockstep").experiment_id])
    assert mlflow_log.place(run) == f"{uri}, run {there.info.run_id}"
    assert (there.info.run_name, there.info.status) == ("mine", "FINISHED")
    assert there.data.params == {"optimizer.learning_rate": "0.1", "model.name": "own", "workers": "2"}
    assert [(one.step, one.value) for one in store.get_metric_history(there.info.run_id, "loss")] == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert there.data.tags["lockstep.weights_sha256"] == "ab" * 32
    assert there.data.tags["lockstep.hosts"] == "one, two"


def test_nothing_is_asked_for(run):
    assert mlflow_log.log(run, None) == ""
    assert mlflow_log.place(run) == ""


def test_silent_server_is_no_fault_of_the_run(run, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    complaint = mlflow_log.log(run, "http://127.0.0.1:9")
    assert complaint.startswith("telemetry.mlflow=http://127.0.0.1:9: mine is not logged there (")
    assert complaint.endswith("Try again: ansible-playbook train.yml -e run=mine")
    assert not (run.path / "mlflow.json").exists()


def test_a_password_and_a_missing_client_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"it holds a password.*MLFLOW_TRACKING_PASSWORD") as caught:
        mlflow_log.check_uri("https://me:secret@host")
    assert "secret" not in str(caught.value)
    monkeypatch.setattr(mlflow_log.importlib, "util", SimpleNamespace(find_spec=lambda name: None))
    with pytest.raises(
        ConfigError, match=r"telemetry.mlflow=http://host: MLflow's client is not installed here: .* pip install mlflow-skinny"
    ):
        mlflow_log.check_uri("http://host")


def test_client_is_loaded_only_where_it_is_used():
    code = "import sys; from control.runs.tasks import conclude; sys.exit('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
