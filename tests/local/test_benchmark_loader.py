"""benchmarks/loader.yml from the command line to its results."""

import csv
import json

import pytest
from PIL import Image

from tests.local_project import LocalProject

HEADER = ["loaders", "number", "images", "seconds", "cpu_seconds", "idle_seconds"]


@pytest.fixture(scope="module")
def bench(project: LocalProject) -> LocalProject:
    """The project with its benchmarks' playbooks."""
    return project


def results(project: LocalProject):
    return sorted((project.root / "benchmarks/results").glob("loader-*"))


def nothing_is_left(project: LocalProject) -> bool:
    return not list((project.root / ".lockstep").glob("worker*/benchmarks"))


def test_passes_over_made_up_pictures(bench):
    done = bench.play("benchmarks/loader", "limit=60", "loaders=1,3", "passes=2", "set=train.batch_size=8")
    (folder,) = results(bench)
    assert {path.name for path in folder.iterdir()} == {"results.csv", "summary.json", "loader.png"}
    with (folder / "results.csv").open() as stream:
        header, *rows = csv.reader(stream)
    assert header == HEADER
    assert [tuple(row[:3]) for row in rows] == [("1", "1", "60"), ("3", "1", "60"), ("3", "2", "60"), ("1", "2", "60")]
    summary = json.loads((folder / "summary.json").read_text())
    given = "-e limit=60 -e loaders=1,3 -e passes=2 -e set=train.batch_size=8"
    assert summary["command"] == f"ansible-playbook benchmarks/loader.yml {given}"
    assert (summary["images"], summary["made_up"], summary["host"]["name"]) == (60, True, "worker1")
    assert summary["host"]["packages"]["pillow"]
    assert [row["loaders"] for row in summary["results"]] == [1, 3]
    assert summary["answer"] in done.stdout.replace("\n", " ")
    with Image.open(folder / "loader.png") as picture:
        assert picture.width == 960
    assert "Next\n  train with as many  ansible-playbook train.yml -e dataset=FOLDER -e set=data.loaders=" in done.stdout
    assert nothing_is_left(bench)


def test_a_folder_of_ones_own_and_an_unreachable_limit(bench, pictures):
    before = len(results(bench))
    done = bench.play("benchmarks/loader", f"dataset={pictures}", "limit=1000", "loaders=2", "passes=1")
    summary = json.loads((results(bench)[-1] / "summary.json").read_text())
    assert len(results(bench)) == before + 1
    assert (summary["images"], summary["made_up"], summary["dataset"]) == (180, False, pictures.name)
    assert summary["results"][0]["seconds"]["deviation"] is None
    assert f"-e 'dataset=\"{pictures}\"'" in summary["command"]
    assert "images   180 images of " in done.stdout


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("loader=2", "-e loader=2: benchmarks/loader.yml takes no such variable (did you mean loaders?); it takes: dataset, loaders, "),
        ("loaders=0", "loaders=0: expected whole numbers from 1, as in 3 or 1,3,5 or 1-5"),
        ("passes=0", "passes=0: expected a whole number from 1"),
        ("dataset=/nonexistent", "dataset=/nonexistent: no such folder or file"),
    ],
)
def test_what_is_refused(bench, given, message):
    before = results(bench)
    done = bench.play("benchmarks/loader", given, check=False)
    assert done.returncode != 0
    assert message in done.stdout
    assert results(bench) == before


def test_a_check_makes_nothing(bench):
    before = results(bench)
    done = bench.play("benchmarks/loader", "limit=61", "--check")
    assert "would make 61 pictures, and time passes over them" in done.stdout
    assert not (bench.root / ".lockstep/benchmarks/pictures-61").exists()
    assert results(bench) == before
