"""Claims of ports, which any user of a host may try to write."""

import json
import os

import pytest

from trainer.host import claims

CLAIM = {"run": "digits", "session": "digits-w0-5e5e", "launch": "5e", "folder": "/runs/digits"}


@pytest.mark.parametrize("change", [{}, {"session": "others-w0"}, {"run": "../x"}, {"launch": 3}])
def test_only_what_a_module_writes_is_a_claim(change, tmp_path):
    path = tmp_path / "8000.json"
    path.write_text(json.dumps(CLAIM | change))
    assert claims.read_claim(str(path)) == (None if change else CLAIM)


def test_another_users_file_is_no_claim(tmp_path, monkeypatch):
    path = tmp_path / "8000.json"
    path.write_text(json.dumps(CLAIM))
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert claims.read_claim(str(path)) is None


def test_a_link_is_no_claim(tmp_path):
    (tmp_path / "there").write_text(json.dumps(CLAIM))
    (tmp_path / "8000.json").symlink_to(tmp_path / "there")
    assert claims.read_claim(str(tmp_path / "8000.json")) is None
