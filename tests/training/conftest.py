"""Real trainings: tests that look at weights or at numbers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local_project import LocalProject, make_project, without_runs
from tests.pictures import make_pictures
from tests.project import ending_after_a_failure
from tests.training.trainings import Trainings


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> LocalProject:
    """A copy of the project for this session, with what it prepares once."""
    return make_project(tmp_path_factory.mktemp("lockstep project"), stub=False)


@pytest.fixture(scope="module")
def project(scratch: LocalProject) -> Iterator[LocalProject]:
    """The scratch copy without a run of another file's tests."""
    yield from without_runs(scratch)


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainings]:
    """Trainings of one file of tests, without Ansible."""
    made = Trainings(tmp_path_factory.mktemp("trainings"))
    yield made
    made.end_all()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images that a small network can learn."""
    return make_pictures(tmp_path_factory.mktemp("bilder mit ü"))


nothing_left_of_a_failure = ending_after_a_failure("project")
