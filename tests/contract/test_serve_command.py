"""`serve.yml` and `export.yml`: a snapshot answers over HTTP as it does by itself."""

import base64
import json
import re
import urllib.error
import urllib.request

import numpy as np
import pytest

from tests.contract import samples
from tests.ports import free_ports

SMALL = "set=data.image_size=[8,8,3],train.global_batch=20"


def post(address: str, body: dict) -> dict:
    with urllib.request.urlopen(f"{address}:predict", json.dumps(body).encode(), timeout=60) as answer:
        return json.load(answer)


def encoded(files) -> dict:
    return {"instances": [{"b64": base64.b64encode(file.read_bytes()).decode()} for file in files]}


@pytest.fixture(scope="module")
def trained(commands, pictures):
    """A run with two snapshots."""
    run = samples.train(commands, "served", f"dataset={pictures}", "config=lecture_cnn", SMALL, "epochs=2")
    commands.call("tests.contract.samples:save_snapshots", str(run), [1, 2])
    return run


@pytest.fixture(scope="module")
def exported(commands, trained):
    """What `export.yml` prints for epoch 1, after a check that writes nothing."""
    checked = commands.ended("export", "epoch=1", "--check")
    assert f"Would export epoch 1 of {trained.name} to exports/{trained.name}/" in checked.stdout
    assert not (commands.root / "exports").exists()
    return commands.ended("export", "epoch=1").stdout


def test_a_snapshot_is_exported_once(commands, trained, exported):
    assert f"{trained.name} is exported as version 1" in exported
    assert re.search(r"takes +image uint8 \[8,8,3\]", exported), exported
    assert not commands.ended("export", "epoch=1").changed


def test_an_exported_run_answers_as_its_snapshot(commands, trained, exported, pictures):
    """Until it is stopped; the same command again changes nothing."""
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}/v1/models/{trained.name}"
    try:
        assert commands.ended("serve", f"serve_port={port}", "--check").changed
        assert f"{address}:predict" in commands.ended("serve", f"serve_port={port}").stdout
        again = commands.ended("serve")
        assert not again.changed
        assert f"http://127.0.0.1:{port}/" in again.stdout, "the port that it has"
        files = sorted(pictures.glob("test/*/*.*"))
        expected = commands.call("tests.contract.samples:probabilities", str(trained), 1, [str(file) for file in files])
        np.testing.assert_allclose(post(address, encoded(files))["predictions"], expected, atol=1e-5)

        assert re.search(r"older +1", commands.ended("export", "epoch=2").stdout)
        assert "version 2: epoch 2" in commands.ended("serve").stdout
        with pytest.raises(urllib.error.HTTPError) as refusal:
            post(address, {"instances": [{"b64": "aGVsbG8="}]})
        assert json.load(refusal.value)["error"] == "row 0, image: not a JPEG, PNG, BMP or GIF"
    finally:
        stopped = commands.ended("serve", "state=absent")
    assert "The server is stopped" in stopped.stdout
    assert not commands.ended("serve", "state=absent").changed
    with pytest.raises(urllib.error.URLError):
        post(address, encoded(files[:1]))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("run=serve", "run=serve: no such exported model (did you mean served?)"),
        ("serve_address=here", "serve_address=here: expected an IP address of this machine"),
        ("serve_port=no", "serve_port=no: expected a whole number from 1"),
    ],
)
def test_what_can_not_be_served(argument, message, commands, exported):
    assert message in commands.refusal("serve", argument)
