"""benchmarks/loader.yml from the command line to its results; what it refuses: tests/unit/benchmarks/test_planned.py."""

import csv
import json

from PIL import Image

from tests.project import EXHAUSTIVE

HEADER = ["loaders", "number", "images", "seconds", "cpu_seconds", "idle_seconds"]


@EXHAUSTIVE
def test_passes_over_a_folder_of_ones_own(project, pictures):
    """With a limit above its images; generated pictures: `python -m tests.docs_commands run benchmarks/loader.yml`."""
    done = project.play("benchmarks/loader", f"dataset={pictures}", "limit=1000", "loaders=1,3", "passes=2", "set=train.batch_size=8")
    (folder,) = (project.root / "benchmarks/results").glob("loader-*")
    assert {path.name for path in folder.iterdir()} == {"results.csv", "summary.json", "loader.png"}
    with (folder / "results.csv").open() as stream:
        header, *rows = csv.reader(stream)
    assert header == HEADER
    assert [tuple(row[:3]) for row in rows] == [("1", "1", "180"), ("3", "1", "180"), ("3", "2", "180"), ("1", "2", "180")]
    summary = json.loads((folder / "summary.json").read_text())
    given = f"-e 'dataset=\"{pictures}\"' -e limit=1000 -e loaders=1,3 -e passes=2 -e set=train.batch_size=8"
    assert summary["command"] == f"ansible-playbook benchmarks/loader.yml {given}"
    assert (summary["images"], summary["made_up"], summary["dataset"]) == (180, False, pictures.name)
    assert summary["host"]["name"] == "worker1"
    assert summary["host"]["packages"]["pillow"]
    assert [row["loaders"] for row in summary["results"]] == [1, 3]
    assert summary["answer"] in done.stdout.replace("\n", " ")
    with Image.open(folder / "loader.png") as picture:
        assert picture.width == 960
    assert "Next\n  train with as many  ansible-playbook train.yml -e dataset=FOLDER -e set=data.loaders=" in done.stdout
    assert not list((project.root / ".lockstep").glob("worker*/benchmarks"))
