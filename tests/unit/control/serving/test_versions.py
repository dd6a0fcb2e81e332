"""Which version answers while its folder changes. No TensorFlow: a version's model is a file with a text."""

import json
import shutil

import pytest

from control.serving.signature import FILE
from control.serving.versions import Model
from trainer.common.errors import LockstepError

CONTENT = {"run": "mine", "epoch": 1, "snapshot_sha256": "", "created_at": "", "image_size": None, "signatures": ["serving_default"]}
CONTENT |= {"inputs": [], "outputs": [], "classes": [], "left_out": {}}


def put(folder, number, text="one", **changes):
    """A version, complete at once as `export.yml` writes it."""
    part = folder / f".part-{number}"
    part.mkdir(parents=True)
    (part / FILE).write_text(json.dumps({**CONTENT, "epoch": number, **changes}))
    (part / "model").write_text(text)
    part.rename(folder / str(number))


def load(folder):
    """The text of a version's model as its only signature."""
    return {"serving_default": (folder / "model").read_text()}


@pytest.fixture
def model(tmp_path):
    """A model with versions 1 and 2, of which 2 is served."""
    for number in (1, 2):
        put(tmp_path / "mine", number, f"model {number}")
    one = Model(tmp_path / "mine", load)
    assert one.renew() == "version 2 is served (mine, epoch 2)"
    return one


def served(model, number=None):
    """What answers."""
    return (model.current(number) or model.version(number)).signatures["serving_default"]


def test_withdrawn_version_gives_way_to_older(model):
    shutil.rmtree(model.folder / "2")
    assert served(model) == "model 1"
    assert model.renew() == "version 2 was withdrawn; version 1 is served (mine, epoch 1)"
    with pytest.raises(LockstepError, match=r"Specific\(mine, 2\); versions: 1"):
        model.version(2)
    shutil.rmtree(model.folder)
    with pytest.raises(LockstepError, match=r"Latest\(mine\); versions: none"):
        served(model)
    assert model.newest is None


def test_replaced_or_changed_version_is_loaded_again(model):
    shutil.rmtree(model.folder / "2")
    put(model.folder, 2, "another")
    assert served(model) == "another"
    assert model.renew() == "version 2 was replaced on disk; version 2 is served (mine, epoch 2)"
    (model.folder / "2" / "model").write_text("changed")
    assert served(model, 2) == "changed"


def test_older_version_in_memory_is_that_on_disk(model):
    assert served(model, 1) == "model 1"
    shutil.rmtree(model.folder / "1")
    put(model.folder, 1, "another")
    assert served(model, 1) == "another"
    shutil.rmtree(model.folder / "1")
    with pytest.raises(LockstepError, match=r"Specific\(mine, 1\); versions: 2"):
        served(model, 1)


def test_half_copied_version_is_served_once_complete(model):
    (model.folder / "3").mkdir()
    shutil.copy(model.folder / "2" / FILE, model.folder / "3")
    assert served(model) == "model 2"
    assert model.renew().startswith("version 3 of mine can't be loaded: ")
    assert "can't be loaded: [Errno 2] No such file or directory: 'model'" in model.states()[3]
    with pytest.raises(LockstepError, match=r"Specific\(mine, 3\); versions: 1, 2; version 3: it can't be loaded: "):
        model.version(3)
    shutil.copy(model.folder / "2" / "model", model.folder / "3")
    assert served(model, 3) == "model 2"
    assert set(model.states().values()) == {""}


def test_version_written_while_it_is_loaded_waits(model, monkeypatch):
    def load_and_write(folder):
        (folder / "more").write_text("")
        return load(folder)

    put(model.folder, 3)
    monkeypatch.setattr(model, "_loader", load_and_write)
    assert model.renew() == "version 3 of mine is being written; try again later"
    monkeypatch.setattr(model, "_loader", load)
    assert model.renew() == "version 3 is served (mine, epoch 3)"


def test_file_beside_another_model_is_refused(model):
    put(model.folder, 3, signatures=["serving_default", "csv"])
    assert "its lockstep.json names the signature csv, which its model lacks; export it again" in model.renew()
    assert served(model) == "model 2"
