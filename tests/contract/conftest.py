"""A scratch project whose commands run in process, and what they are given."""

from pathlib import Path

import pytest

from tests.commands import Commands, make_project
from tests.pictures import make_pictures


@pytest.fixture(scope="session")
def examined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sizes of the models that were examined in this session."""
    return tmp_path_factory.mktemp("examined")


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory, examined: Path) -> Commands:
    """A project for the tests of a file."""
    return make_project(tmp_path_factory.mktemp("a project"), examined)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images in three classes, names with spaces and Unicode."""
    return make_pictures(tmp_path_factory.mktemp("bilder mit ü"))
