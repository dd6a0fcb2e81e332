"""What was trained is exported and answers over HTTP, as predict.yml does."""

import base64
import csv
import json
import re
import urllib.error
import urllib.request

import numpy as np
import pytest

from control.runs import evaluations
from tests.ports import free_ports

CONFIG = "config=task_cnn", "set=train.global_batch=20,train.steps=20,train.steps_per_epoch=10"


def post(address: str, body: dict) -> dict:
    with urllib.request.urlopen(f"{address}:predict", json.dumps(body).encode(), timeout=60) as answer:
        return json.load(answer)


def answers_as_evaluate_does(project, run: str, pictures, address: str) -> None:
    """All test pictures, as files: the loss and the accuracy of the answers are those of evaluate.yml."""
    project.play("evaluate", f"run={run}", "epoch=1")
    classes = json.loads((project.run(run) / "cluster.json").read_text())["dataset"]["classes"]
    files = sorted(pictures.glob("test/*/*.*"))
    answers = np.array(
        post(address, {"instances": [{"b64": base64.b64encode(file.read_bytes()).decode()} for file in files]})["predictions"]
    )
    labels = np.array([classes.index(file.parent.name) for file in files])
    evaluated = evaluations.rows(project.run(run) / "evaluations.csv")[1]
    assert (answers.argmax(axis=1) == labels).mean() == pytest.approx(evaluated["accuracy"], abs=1e-6)
    assert -np.log(answers[np.arange(len(labels)), labels]).mean() == pytest.approx(evaluated["loss"], rel=1e-4)


@pytest.fixture(scope="module")
def trained(project, pictures):
    project.play("train", "run=served", f"dataset={pictures}", *CONFIG)
    return "served"


def test_an_exported_run_answers_as_predict_does(trained, project, pictures, tmp_path):
    refused = project.play("serve", f"run={trained}", check=False)
    assert "there is no exported model; first: ansible-playbook export.yml -e run=NAME" in refused.stdout
    assert f"Would export epoch 1 of {trained} to exports/{trained}/" in project.play("export", "epoch=1", "--check").stdout
    assert not (project.root / "exports").exists()
    exported = project.play("export", "epoch=1").stdout
    assert f"{trained} is exported as version 1" in exported
    assert re.search(r"takes +image uint8 \[32,32,3\]", exported), exported
    assert "changed=0" in project.play("export", "epoch=1").stdout

    (port,) = free_ports(1)
    try:
        assert "changed=1" in project.play("serve", f"serve_port={port}", "--check").stdout
        shown = project.play("serve", f"serve_port={port}").stdout
        address = f"http://127.0.0.1:{port}/v1/models/{trained}"
        assert f"{address}:predict" in shown
        again = project.play("serve").stdout
        assert "changed=0" in again
        assert f"http://127.0.0.1:{port}/" in again, "the port that it has"
        picture = next(pictures.glob("test/*/*.png"))
        project.play("predict", f"run={trained}", "epoch=1", f"input={picture}", f"output={tmp_path / 'one.csv'}")
        with (tmp_path / "one.csv").open(newline="") as stream:
            (row,) = csv.DictReader(stream)
        encoded = {"b64": base64.b64encode(picture.read_bytes()).decode()}
        answer = post(address, {"instances": [encoded]})["predictions"][0]
        assert max(answer) == pytest.approx(float(row["probability"]), abs=1e-6)
        answers_as_evaluate_does(project, trained, pictures, address)

        second = project.play("export", "epoch=2").stdout
        assert re.search(r"older +1", second), second
        status = project.play("serve").stdout
        assert "version 2: epoch 2" in status
        with pytest.raises(urllib.error.HTTPError) as refusal:
            post(address, {"instances": [{"b64": "aGVsbG8="}]})
        assert json.load(refusal.value)["error"] == "row 0, image: not a JPEG, PNG, BMP or GIF"
    finally:
        stopped = project.play("serve", "state=absent").stdout
    assert "The server is stopped" in stopped
    assert "changed=0" in project.play("serve", "state=absent").stdout
    with pytest.raises(urllib.error.URLError):
        post(address, {"instances": [encoded]})


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ("export", ["epoch=1,2"], "epoch=1,2: a version holds one snapshot"),
        ("export", ["epoch=9"], "has no such snapshot"),
        ("serve", ["run=serve"], "run=serve: no such exported model (did you mean served?)"),
        ("serve", ["serve_address=here"], "serve_address=here: expected an IP address of this machine"),
        ("serve", ["serve_port=no"], "serve_port=no: expected a whole number from 1"),
        ("serve", ["prot=1"], "-e prot=1: serve.yml takes no such variable"),
    ],
)
def test_what_can_not_be_done_is_said(command, arguments, words, trained, project):
    project.play("export", "epoch=1")
    assert words in project.play(command, *arguments, check=False).stdout
