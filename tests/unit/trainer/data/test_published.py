"""A published dataset whose shared folder comes later."""

import errno
import threading
from pathlib import Path

import pytest

from trainer.data import manifest
from trainer.data.manifest import Published, await_published


def test_folder_that_is_mounted_later_is_waited_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(manifest, "AGAIN_S", 0.01)
    later = threading.Timer(0.2, (tmp_path / manifest.FILE).touch)
    later.start()
    await_published(Published(tmp_path, ""), 30.0)
    later.join()
    assert (tmp_path / manifest.FILE).exists()
    assert capsys.readouterr().out == f"{tmp_path} is not there: waiting up to 30 s for the shared folder\n"


@pytest.mark.parametrize("error", [None, OSError(errno.ENOTCONN, "Transport endpoint is not connected")])
def test_absent_folder_is_left_to_its_reader(error, tmp_path, monkeypatch, capsys):
    """A folder that does not come is left to who reads it."""

    def refuse(_: Path) -> bool:
        if error:
            raise error
        return False

    monkeypatch.setattr(manifest, "AGAIN_S", 0.01)
    monkeypatch.setattr(Path, "is_file", refuse)
    await_published(Published(tmp_path, ""), 0.05)
    assert "waiting up to 0 s" in capsys.readouterr().out


def test_nothing_is_said_of_folder_that_is_there(tmp_path, capsys):
    (tmp_path / manifest.FILE).touch()
    await_published(Published(tmp_path, ""), 30.0)
    assert capsys.readouterr().out == ""
