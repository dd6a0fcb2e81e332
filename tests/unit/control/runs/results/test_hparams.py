"""A run's row in TensorBoard's HParams table: what is in the event file, read back record by record."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.plugins.hparams import api_pb2, metadata

from control.common import configurations
from control.runs.results import hparams
from control.runs.results.evaluation_table import EvaluationTable
from control.runs.results.hyperparameters import _flat, hyperparameters
from control.runs.results.run_folder import RunFolder
from control.runs.results.summary import Summary
from tests.unit.refusals import refusal
from trainer.common.files import write_json, write_text
from trainer.config.schema import Config

SUMMARY = {
    "state": "SUCCEEDED",
    "workers": 2,
    "epochs_done": 10,
    "seconds_total": 182.3,
    "images_per_s": 2298.0,
    "best": {"epoch": 5, "val_accuracy": 0.5856},
}
EVALUATIONS = "epoch,split,loss,accuracy,images,seconds,evaluated_at\n"
ROOT = Path(__file__).resolve().parents[5]


def make_run(folder: Path, summary=SUMMARY, workers: int = 2, **config) -> Path:
    """A run directory as it is after a training, without curves in its logs."""
    (folder / "logs" / "train").mkdir(parents=True)
    plain = configurations.to_dict(configurations.build(configurations.override(configurations.to_dict(Config()), config)))
    write_text(folder / "config.yml", json.dumps(plain))
    write_json(
        folder / "cluster.json",
        {"created_at": "2026-11-21T05:26:20+00:00", "hosts": [{"rank": rank, "name": f"node{rank}"} for rank in range(workers)]},
    )
    if summary is not None:
        write_json(folder / "summary.json", summary)
    return folder


def rows(run: Path) -> list[Event]:
    """The events of the only row file, checksums checked."""
    (path,) = (run / "logs").glob("*.hparams")
    content, events = path.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        data = content[12 : 12 + length]
        assert struct.unpack("<I", content[8:12])[0] == masked_crc32c(content[:8])
        assert struct.unpack("<I", content[12 + length : 16 + length])[0] == masked_crc32c(data)
        events.append(Event.FromString(data))
        content = content[16 + length :]
    return events


def parts(run: Path) -> dict:
    """What the file says to the HParams plugin: experiment, session start, session end."""
    readers = {
        metadata.EXPERIMENT_TAG: metadata.parse_experiment_plugin_data,
        metadata.SESSION_START_INFO_TAG: metadata.parse_session_start_info_plugin_data,
        metadata.SESSION_END_INFO_TAG: metadata.parse_session_end_info_plugin_data,
    }
    actual = [value for event in rows(run) for value in event.summary.value if value.tag in readers]
    assert all(value.metadata.plugin_data.plugin_name == "hparams" for value in actual)
    return {value.tag.rpartition("/")[2]: readers[value.tag](value.metadata.plugin_data.content) for value in actual}


def scalars(run: Path) -> dict[str, tuple[float, int]]:
    """Tag -> value and step of the scalars."""
    values = [(event.step, value) for event in rows(run) for value in event.summary.value]
    return {one.tag: (one.tensor.float_val[0], step) for step, one in values if one.metadata.plugin_data.plugin_name == "scalars"}


def test_a_session_holds_the_values_of_the_run(tmp_path):
    run = make_run(tmp_path / "first", workers=4, **{"train.global_batch": 256, "model.name": "deep_cnn", "data.allow_bad_images": True})
    hparams.write_row(RunFolder(run))
    start = parts(run)["session_start_info"]
    assert (start.group_name, start.start_time_secs) == ("first", 1795238780.0)
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert {name: values[name] for name in hparams.FIRST} == {
        "model.name": "deep_cnn",
        "optimizer.learning_rate": 0.01,
        "reduction.name": "auto",
        "train.global_batch": 256,
        "workers": 4,
    }
    assert (values["data.allow_bad_images"], values["schedule.decay"]) == (True, "[]")
    assert "train.steps" not in values


def test_how_gradients_were_sent_is_what_was_chosen(tmp_path):
    run = make_run(tmp_path / "first")
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"reduction": {"name": "powersgd", "why": "compressed"}}))
    hparams.write_row(RunFolder(run))
    assert parts(run)["session_start_info"].hparams["reduction.name"].string_value == "powersgd"


def test_every_configuration_key_is_a_column():
    """Every key of the configuration is a column even where this run has no value."""
    columns = {info.name: info.type for info in hparams._experiment({"workers": 2, "model.name": "own", "model.fast": True}).hparam_infos}
    known = {name for name, _ in _flat(configurations.to_dict(Config()))}
    assert set(columns) == known | {"workers", "model.fast"}
    number, words, truth = api_pb2.DATA_TYPE_FLOAT64, api_pb2.DATA_TYPE_STRING, api_pb2.DATA_TYPE_BOOL
    expected = {
        "checkpoint.every_steps": number,
        "data.limit_train": number,
        "train.time_limit": number,
        "optimizer.momentum": number,
        "workers": number,
        "data.path": words,
        "data.image_size": words,
        "model.name": words,
        "data.allow_bad_images": truth,
        "model.fast": truth,
    }
    assert {name: columns[name] for name in expected} == expected


def test_five_columns_that_tensorboard_shows_first_are_ours():
    values = hyperparameters(configurations.to_dict(Config()), 2)
    infos = hparams._experiment(values).hparam_infos
    shown = [info.name for info in sorted(infos, key=lambda info: (not info.differs, info.name))][:5]
    assert shown == ["model.name", "optimizer.learning_rate", "reduction.name", "train.global_batch", "workers"]


def test_results_stand_at_their_epoch(tmp_path):
    run = make_run(tmp_path / "first")
    write_text(run / "evaluations.csv", EVALUATIONS + "1,test,1.5,0.43,100,1,x\n5,test,1.2,0.57,100,1,x\n10,test,1.3,0.56,100,1,x\n")
    hparams.write_row(RunFolder(run))
    assert scalars(run) == {
        "result/validation_accuracy": (pytest.approx(0.5856), 5),
        "result/best": (pytest.approx(0.5856), 5),
        "result/images_per_s": (2298.0, 10),
        "result/test_accuracy": (pytest.approx(0.57), 5),
    }


@pytest.mark.parametrize(
    ("summary", "tested", "tags"),
    [
        ({}, {}, set()),
        ({"best": None, "epochs_done": 0, "images_per_s": None}, {0: 0.5}, set()),
        (SUMMARY, {1: 0.4, 10: 0.5}, {hparams.VALIDATION, hparams.BEST, hparams.SPEED}),
        (SUMMARY, {5: 0.5}, {hparams.VALIDATION, hparams.BEST, hparams.SPEED, hparams.TEST}),
        ({**SUMMARY, "best": {"epoch": 3, "val_auc": 0.9}}, {}, {hparams.BEST, hparams.SPEED}),
        ({**SUMMARY, "best": {"epoch": 1, "val_accuracy": float("nan")}}, {}, {hparams.SPEED}),
    ],
)
def test_what_is_not_known_is_left_out(summary, tested, tags):
    assert set(hparams._results(Summary.of(summary), tested)) == tags


def test_latest_test_evaluation_of_an_epoch_counts(tmp_path):
    path = tmp_path / "evaluations.csv"
    assert EvaluationTable(path).accuracies == {}
    write_text(path, EVALUATIONS + "1,test,1,0.1,9,1,x\n2,test,1,0.2,9,1,x\n1,test,1,0.3,9,1,y\n2,train,1,0.9,9,1,y\n")
    assert EvaluationTable(path).accuracies == {1: 0.3, 2: 0.2}


@pytest.mark.parametrize(
    ("state", "status"),
    [("SUCCEEDED", api_pb2.STATUS_SUCCESS), ("FAILED", api_pb2.STATUS_FAILURE), ("RUNNING", None), ("CANCELLED", None), (None, None)],
)
def test_a_session_has_ended_when_the_run_has(tmp_path, state, status):
    run = make_run(tmp_path / "first", {**SUMMARY, "state": state})
    hparams.write_row(RunFolder(run))
    end = parts(run).get("session_end_info")
    assert (end.status if end else None) == status
    if end:
        assert end.end_time_secs == 1795238780.0 + 182.3


def test_run_under_way_has_row_without_results(tmp_path):
    run = make_run(tmp_path / "first", summary=None)
    assert hparams.write_row(RunFolder(run))
    assert set(parts(run)) == {"experiment", "session_start_info"}
    assert scalars(run) == {}


def test_news_is_written_under_a_later_name(tmp_path):
    run = make_run(tmp_path / "first")
    assert hparams.write_row(RunFolder(run))
    assert [path.name for path in (run / "logs").iterdir() if path.is_file()] == ["events.out.tfevents.000001.hparams"]
    before = (run / "logs" / "events.out.tfevents.000001.hparams").stat().st_mtime_ns
    assert not hparams.write_row(RunFolder(run))
    assert (run / "logs" / "events.out.tfevents.000001.hparams").stat().st_mtime_ns == before
    write_text(run / "evaluations.csv", EVALUATIONS + "5,test,1.2,0.57,100,1,x\n")
    assert hparams.write_row(RunFolder(run))
    assert [path.name for path in (run / "logs").iterdir() if path.is_file()] == ["events.out.tfevents.000002.hparams"]
    assert scalars(run)["result/test_accuracy"][1] == 5


def test_what_an_interrupted_replacement_left_is_cleared(tmp_path):
    run = make_run(tmp_path / "first")
    hparams.write_row(RunFolder(run))
    old = run / "logs" / "events.out.tfevents.000001.hparams"
    (run / "logs" / "events.out.tfevents.000007.hparams").write_bytes(old.read_bytes())
    assert hparams.write_row(RunFolder(run))
    assert [path.name for path in (run / "logs").iterdir() if path.is_file()] == ["events.out.tfevents.000008.hparams"]


def test_another_process_writes_the_same_bytes_without_tensorflow(tmp_path):
    mine, theirs = make_run(tmp_path / "a" / "first"), make_run(tmp_path / "b" / "first")
    hparams.write_row(RunFolder(mine))
    script = (
        "import sys, pathlib; from control.runs.results import hparams, run_folder; "
        "hparams.write_row(run_folder.RunFolder(pathlib.Path(sys.argv[1]))); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(theirs)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"tensorflow", "keras"} & set(done.stdout.split())
    name = "logs/events.out.tfevents.000001.hparams"
    assert (mine / name).read_bytes() == (theirs / name).read_bytes()


def test_rows_only_for_what_has_begun(tmp_path):
    make_run(tmp_path / "whole")
    (tmp_path / "refused").mkdir()
    write_text(tmp_path / "refused" / "config.yml", "seed: 1")
    make_run(tmp_path / "old")
    (tmp_path / "old" / "cluster.json").unlink()
    assert hparams.write_all(map(RunFolder, sorted(tmp_path.iterdir()))) == (1, [])
    assert hparams.write_all(map(RunFolder, sorted(tmp_path.iterdir()))) == (0, [])
    assert [path.parent.parent.name for path in tmp_path.rglob("*.hparams")] == ["whole"]


@pytest.mark.parametrize(
    ("file", "content", "what"),
    [
        ("config.yml", "seed: [", "{folder}/config.yml: not YAML: while parsing a flow node"),
        ("config.yml", "", "{folder}/config.yml: a configuration is a mapping of sections, this is NoneType"),
        ("summary.json", "{", "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("cluster.json", "{}", "ValueError: Invalid isoformat string: ''"),
        ("evaluations.csv", "epoch,split,accuracy\n1,test,high\n", "ValueError: could not convert string to float: 'high'"),
    ],
)
def test_unreadable_run_is_named_and_others_have_rows(tmp_path, file, content, what):
    """A run whose files cannot be read is named and the others have their rows."""
    bad, good = make_run(tmp_path / "bad"), make_run(tmp_path / "good")
    write_text(bad / file, content)
    what = what.format(folder=bad)
    message = f"bad: no row in TensorBoard's HParams table, for its files can't be read ({what}); its curves are shown"
    assert hparams.write_all([RunFolder(bad), RunFolder(good)]) == (1, [message])
    assert refusal(hparams.write_row, RunFolder(bad)) == message
