"""What needs no TensorFlow: commands and workers around the stub worker, `tests.stub_worker`."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded
from tests.commands import Commands, make_commands
from tests.contract.hosts import Hosts
from tests.local_project import LocalProject, make_project, without_runs
from tests.pictures import make_pictures
from tests.project import ending_after_a_failure


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> LocalProject:
    """A copy of the project for this session, with what it prepares once; its commands are forked."""
    made = make_project(tmp_path_factory.mktemp("lockstep project"), stub=True)
    return dataclasses.replace(made, popen=preloaded.around_the_stub(made.root).popen)


@pytest.fixture(scope="module")
def project(scratch: LocalProject) -> Iterator[LocalProject]:
    """The scratch copy without a run of another file's tests."""
    yield from without_runs(scratch)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images that a small network can learn."""
    return make_pictures(tmp_path_factory.mktemp("bilder mit ü"))


nothing_left_of_a_failure = ending_after_a_failure("project")


@pytest.fixture
def hosts(tmp_path: Path, scratch: LocalProject, pictures: Path) -> Iterator[Callable[..., Hosts]]:
    """A function that makes hosts of one run, with the options of `Hosts`; their processes end with the test."""
    made: list[Hosts] = []

    def make(**options: Any) -> Hosts:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Hosts(folder, scratch, pictures, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def examined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sizes of the models that were examined in this session."""
    return tmp_path_factory.mktemp("examined")


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory, examined: Path) -> Commands:
    """A project for the tests of a file, whose commands run in process."""
    return make_commands(tmp_path_factory.mktemp("a project"), examined)
