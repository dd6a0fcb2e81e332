"""Predictions: what predict.yml refuses, what it believes of a host, and the file that it writes."""

import csv
import dataclasses
import os
import pickle
import signal

import numpy as np
import pytest

from control.common.task import Task
from control.runs.predict import predictions
from control.runs.predict.predictions import Prediction, PredictionRequest
from control.runs.tasks import prediction
from tests.unit.refusals import refusal_of_typed as refusal
from trainer.common.errors import LockstepError
from trainer.data.spec import Leaf
from trainer.evaluation.measures import Classes
from trainer.evaluation.predict import BLOCK

PICTURES = Prediction(
    "pets",
    3,
    "input=pics",
    [2, 1],
    [Leaf("probability", "float32", (4,))],
    ["cat", "dog", "emu", "fox"],
    [None],
    True,
    ["a.png", "b.png", "c.png"],
)
TABLE = Prediction(
    "trips", 3, "input=new.csv", [2, 1], [Leaf("fare", "float32", (1,)), Leaf("parts", "int64", (2, 2))], [], [None, None], False, []
)
JUDGED = dataclasses.replace(TABLE, outputs=[Leaf("kind", "float32", (2,))], classes=["no", "yes"], goals=[Classes(2)])


# --- options


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Parse variables typed in an empty folder, for a run of three hosts with two snapshots."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for epoch in (1, 2):
        (tmp_path / f"run/checkpoints/epoch-000{epoch}.keras").touch()
    return lambda **options: PredictionRequest.of({"input": "fashion_mnist", "epoch": "last", **options}, tmp_path / "run", 3)


def test_the_output_is_refused_before_anything_is_read(tmp_path, asked, monkeypatch):
    (tmp_path / "old.csv").write_text("kept")
    (tmp_path / "folder.csv").mkdir()
    assert asked(output="new.csv").output == tmp_path / "new.csv"
    assert asked(output="old.csv", overwrite="true").output == tmp_path / "old.csv"
    assert asked().output is None
    for output, message in (
        ("old.csv", "output=old.csv: it already exists. Fix: another name, or -e overwrite=true"),
        ("folder.csv", "output=folder.csv: it is a folder; give another name"),
        ("new.cvs", "output=new.cvs: expected a file NAME.csv or NAME.parquet (did you mean .csv?)"),
        ("new", "output=new: expected a file NAME.csv or NAME.parquet"),
        ("no/new.csv", f"output=no/new.csv: there is no folder {tmp_path}/no; create it: mkdir -p {tmp_path}/no"),
    ):
        assert refusal(asked, output=output) == message
    assert refusal(asked, output="a.csv", overwrite="perhaps") == "overwrite=perhaps: expected true or false"
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert "writing Parquet needs pyarrow. Fix: .venv/bin/python -m pip install pyarrow" in refusal(asked, output="a.parquet")


def test_the_input_is_not_written_over(tmp_path, asked):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").touch()
    for given, output in (("in/a.csv", "in/a.csv"), ("in", "in/b.csv")):
        assert "it is part of the input" in refusal(asked, input=given, output=output, overwrite="true")
    assert asked(input="in", output="b.csv").output == tmp_path / "b.csv"


def test_paths_are_of_the_typing_folder(tmp_path, asked):
    (tmp_path / "pics").mkdir()
    assert asked(input="pics").given == str(tmp_path / "pics")
    assert asked(input="mine.py:new").given == f"{tmp_path}/mine.py:new"
    assert asked().given == "fashion_mnist"


def test_one_epoch_and_only_existing_hosts(asked):
    assert asked().epoch == 2
    assert refusal(asked, epoch="all") == ("epoch=all: predictions are those of one snapshot; give one epoch, as in epoch=best or epoch=2")
    assert (asked().hosts, asked(workers="2").hosts) == (3, 2)
    assert refusal(asked, workers="4") == "workers=4: the run has 3 hosts; give at most 3"


# --- columns


def test_columns_are_classes_or_outputs():
    assert PICTURES.columns == ["file", "class", "probability", "class_2", "probability_2", "class_3", "probability_3"]
    table = PICTURES.table(1, [np.array([[0.1, 0.6, 0.0, 0.3], [0.25, 0.25, 0.25, 0.25]], np.float32)])
    assert [column.tolist() for column in table.values()][:4] == [
        ["b.png", "c.png"],
        ["dog", "cat"],
        [np.float32(0.6), 0.25],
        ["fox", "dog"],
    ]
    assert TABLE.columns == ["row", "fare", "parts_0_0", "parts_0_1", "parts_1_0", "parts_1_1"]
    table = TABLE.table(256, [np.array([[1.5]], np.float32), np.arange(4).reshape(1, 2, 2)])
    assert [column.tolist() for column in table.values()] == [[257], [1.5], [0], [1], [2], [3]]


def test_a_class_has_its_name_and_its_number():
    assert JUDGED.columns == ["row", "class", "kind_no", "kind_yes"]
    assert JUDGED.table(0, [np.array([[0.1, 0.9]], np.float32)])["class"].tolist() == ["yes"]
    binary = dataclasses.replace(JUDGED, outputs=[Leaf("fault", "float32", (1,))], classes=[], goals=[Classes(2, 0.5)])
    assert binary.columns == ["row", "class", "fault"]
    assert binary.table(0, [np.array([[0.1], [0.9]], np.float32)])["class"].tolist() == ["0", "1"]


def test_each_classifying_output_has_a_column():
    """Each of several outputs that is a class has a column for it."""
    outputs = [Leaf("kind", "float32", (3,)), Leaf("size", "float32", (1,)), Leaf("fault", "float32", (1,))]
    both = dataclasses.replace(TABLE, outputs=outputs, goals=[Classes(3), None, Classes(2, 0.0)])
    assert both.columns == ["row", "kind_class", "kind_0", "kind_1", "kind_2", "size", "fault_class", "fault"]
    table = both.table(0, [np.array([[0.1, 0.2, 0.7]], np.float32), np.array([[5.0]], np.float32), np.array([[-1.0]], np.float32)])
    assert [column.tolist()[0] for name, column in table.items() if name.endswith("_class")] == ["2", "0"]
    assert table["size"].tolist() == [5.0]


def test_names_are_distinct():
    clashing = dataclasses.replace(TABLE, outputs=[Leaf("row", "float32", ()), Leaf("row", "float32", (1,))])
    assert clashing.columns == ["row", "row_2", "row_3"]


# --- what hosts give


def give(folder, rank, number, array):
    path = predictions.results(folder, rank) / "predict" / f"output-{number:04d}.npy"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array, allow_pickle=True)
    return path


@pytest.fixture
def given(tmp_path):
    """What two hosts gave for three rows."""
    for rank, rows in enumerate(TABLE.rows):
        give(tmp_path, rank, 0, np.full((rows, 1), rank, np.float32))
        give(tmp_path, rank, 1, np.full((rows, 2, 2), rank, np.int64))
    return tmp_path


def collected(folder):
    return predictions.collected(TABLE, folder, ["pi1", "pi2"])


def test_what_hosts_give_is_opened(given):
    assert [[array.shape for array in arrays] for arrays in collected(given)] == [[(2, 1), (2, 2, 2)], [(1, 1), (1, 2, 2)]]


@pytest.mark.parametrize(
    "array",
    [np.zeros((3, 1), np.float32), np.zeros(1, np.float32), np.zeros((1, 1)), np.zeros((1, 1), ">f4"), np.zeros((1, 1), np.int32)],
)
def test_array_of_another_shape_or_type_is_refused(given, array):
    give(given, 1, 0, array)
    with pytest.raises(LockstepError, match=r"^pi2: its predictions \(output-0000.npy\) are .*; \[1, 1\] of float32 were asked for$"):
        collected(given)


class Evil:
    def __reduce__(self):
        return (print, ("this code runs",))


@pytest.mark.parametrize("content", [None, b"", b"x" * 200, pickle.dumps(Evil()), b"\x93NUMPY\x01\x00\x10\x00{'descr': exit()}"])
def test_what_is_no_array_runs_no_code(given, content, capsys):
    path = give(given, 1, 0, np.array([Evil()], object))
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LockstepError, match=r"^pi2: it gave no predictions that can be read \(output-0000.npy: "):
        collected(given)
    assert capsys.readouterr().out == ""


def test_missing_array_and_one_cut_off_are_refused(given):
    path = give(given, 0, 0, np.zeros((2, 1), np.float32))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LockstepError, match=r"^pi1: it gave no predictions"):
        collected(given)
    path.unlink()
    with pytest.raises(LockstepError, match=r"^pi1: it gave no predictions"):
        collected(given)


# --- the file


def many(hosts, count):
    """A prediction of `count` rows whose outputs are the rows' numbers, and what the hosts gave."""
    prediction = Prediction("r", 1, "input=x", [], [Leaf("a", "float32", ()), Leaf("b", "float32", (2,))], [], [None, None], False, [])
    rows = [[] for _ in range(hosts)]
    for first in range(0, count, BLOCK):
        rows[predictions.new_examples.Parts.place(first, hosts)[0]] += list(range(first, min(count, first + BLOCK)))
    numbers = [np.array(one, np.float32) for one in rows]
    arrays = [[one, np.stack([one / 10, -one], axis=1)] for one in numbers]
    return dataclasses.replace(prediction, rows=list(map(len, rows))), arrays


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_rows_are_written_in_the_inputs_order(tmp_path, hosts):
    prediction, arrays = many(hosts, 3 * BLOCK + 5)
    predictions.write_predictions(tmp_path / "out.csv", predictions.tables(prediction, arrays))
    with (tmp_path / "out.csv").open(newline="") as stream:
        header, *rows = csv.reader(stream)
    assert header == ["row", "a", "b_0", "b_1"]
    assert [int(row[0]) for row in rows] == list(range(1, 3 * BLOCK + 6))
    assert rows[1] == ["2", "1.0", "0.1", "-1.0"]
    assert [float(row[1]) for row in rows] == list(range(3 * BLOCK + 5))


def test_odd_names_stay_one_field(tmp_path):
    """Names with commas and line ends stay one field."""
    names = ['a,"b".png', "c\nd.png", "ü.png"]
    prediction = dataclasses.replace(PICTURES, names=names)
    predictions.write_predictions(tmp_path / "out.csv", iter([prediction.table(0, [np.eye(4, dtype=np.float32)[:3]])]))
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as stream:
        assert [row[0] for row in csv.reader(stream)][1:] == names


def test_error_leaves_no_file_and_old_one(tmp_path):
    def broken():
        yield TABLE.table(0, [np.zeros((2, 1), np.float32), np.zeros((2, 2, 2), np.int64)])
        raise LockstepError("the disk is gone")

    (tmp_path / "old.csv").write_text("old")
    for name in ("new.csv", "old.csv"):
        with pytest.raises(LockstepError):
            predictions.write_predictions(tmp_path / name, broken())
    assert [path.name for path in tmp_path.iterdir()] == ["old.csv"]
    assert (tmp_path / "old.csv").read_text() == "old"


def test_a_command_that_is_ended_writes_nothing(given, tmp_path_factory, monkeypatch):
    output, tables = tmp_path_factory.mktemp("out") / "new.csv", predictions.tables

    def interrupted(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        yield from tables(*arguments)

    monkeypatch.setattr(predictions, "tables", interrupted)
    outputs = [{**dataclasses.asdict(leaf), "goal": None} for leaf in TABLE.outputs]
    planned = {name: getattr(TABLE, name) for name in ("run", "epoch", "called", "rows", "classes", "images")}
    planned |= {"outputs": outputs, "folder": str(given), "output": str(output), "warnings": []}
    with pytest.raises(LockstepError, match=r"new.csv: the command was ended before it was written$"):
        prediction.write(Task({"planned": planned, "hosts": [{"name": "pi1"}, {"name": "pi2"}], "done": [{"changed": False}] * 2}))
    assert list(output.parent.iterdir()) == []
    assert not given.exists()


@pytest.mark.parametrize("part", [{"failed": True, "msg": "no memory"}, {"unreachable": True}])
def test_a_hosts_failure_leaves_no_examples(given, part):
    assert prediction.write(Task({"planned": {"folder": str(given)}, "done": [{"changed": False}, part]})) == {"changed": False}
    assert not given.exists()


def test_parquet_has_the_same_columns(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: nothing but Parquet needs it")
    prediction, arrays = many(2, BLOCK + 5)
    predictions.write_predictions(tmp_path / "out.parquet", predictions.tables(prediction, arrays))
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == prediction.columns
    assert table["b_1"].to_pylist() == [-float(number) for number in range(BLOCK + 5)]
    predictions.write_predictions(tmp_path / "named.parquet", iter([PICTURES.table(0, [np.eye(4, dtype=np.float32)[:3]])]))
    assert parquet.read_table(tmp_path / "named.parquet")["class"].to_pylist() == ["cat", "dog", "emu"]


# --- what is shown


def test_first_rows_and_next_commands_are_shown():
    prediction, arrays = many(2, 1000)
    first = next(predictions.tables(prediction, arrays))
    shown = predictions.show(prediction, first, "out.csv", ["x.age has NaN"], 2).splitlines()
    assert shown[0] == "1,000 rows of input=x by r, epoch 1, on 2 hosts, written to out.csv"
    assert shown[1] == "warning: x.age has NaN"
    assert shown[2].split() == ["row", "a", "b_0", "b_1"]
    assert shown[4].split() == ["2", "1.0000", "0.1000", "-1.0000"]
    assert shown[8] == "  and 995 more rows"
    assert "ansible-playbook evaluate.yml -e run=r -e epoch=1" in shown[-1]


def test_without_file_command_that_writes_one_is_shown():
    prediction, arrays = many(1, 2)
    prediction = dataclasses.replace(prediction, called="input=my table.csv")
    shown = predictions.show(prediction, next(predictions.tables(prediction, arrays)), "", [], 1)
    assert "ansible-playbook predict.yml -e run=r -e 'input=my table.csv' -e output=FILE.csv" in shown


def test_one_image_has_a_line_for_each_class():
    one = dataclasses.replace(PICTURES, rows=[1], names=["a.png"], called="image=/home/me/a.png")
    shown = predictions.show(one, one.table(0, [np.array([[0.1, 0.6, 0.0, 0.3]], np.float32)]), "", [], 1)
    assert [line.split() for line in shown.splitlines()[1:]] == [
        ["class", "probability"],
        ["dog", "60.0%"],
        ["fox", "30.0%"],
        ["cat", "10.0%"],
    ]
    assert shown.startswith("/home/me/a.png by pets, epoch 3\n")


def test_check_says_what_would_be_written():
    wide = dataclasses.replace(TABLE, outputs=[Leaf("a", "float32", (20,))], goals=[None])
    shown = predictions.show(wide, None, "out.csv", [], 2)
    assert shown.startswith("3 rows of input=new.csv by trips, epoch 3, on 2 hosts, to be written to out.csv\n")
    assert "columns: row, a_0, a_1, a_2, a_3, a_4  and 15 more columns" in shown


def test_rows_and_columns_left_out_share_a_line():
    wide = dataclasses.replace(TABLE, outputs=[Leaf("a", "float32", (6,))], goals=[None])
    first = {name: np.zeros(1) for name in wide.columns}
    assert predictions.show(wide, first, "out.csv", [], 2).partition("\n\n")[0].endswith("\n  and 2 more rows and 1 more column")


def test_numbers_that_are_not_finite_are_counted():
    assert predictions.not_finite({"row": np.arange(3), "a": np.array([1, np.nan, np.inf]), "class": np.array(["x"], object)}) == 2
