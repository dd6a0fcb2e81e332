"""What tests of wheels share."""

import pytest


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that pip and uv take wheels from, and nothing else."""
    folder = tmp_path / "my wheels"
    folder.mkdir()
    monkeypatch.setenv("WHEELS", str(folder))
    return folder
