"""A node that is another's: what it lists, writes and sends reaches neither another file, nor the terminal, nor a traceback."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from control.common import progress_line
from control.remote import admission, worker_access, worker_files
from control.remote.follow import HostUnreachable
from control.remote.worker_access import Worker
from control.runs.results import evaluations
from tests.unit import hosts
from tests.unit.samples import ERRORS
from tests.unit.samples import HISTORY as COLUMNS
from trainer.common.errors import LockstepError
from trainer.rundir import schemas
from trainer.rundir.metrics_log import Metrics

HISTORY = ",".join(COLUMNS) + "\n1,0.5,0.5,0.5,0.5,0.1,1,100\n"
NUMBERS = {"metrics": {"loss": 0.5, "accuracy": 0.5}, "images_per_s": 100.0, "input_wait": 0.0, "seconds": 1.0}


@pytest.fixture
def warned(monkeypatch):
    """What the person is warned of."""
    warnings = []
    monkeypatch.setattr(progress_line, "Display", lambda: SimpleNamespace(display=warnings.append))
    return warnings


@pytest.fixture
def node(tmp_path, warned):
    """A worker, its run directory, and where that is collected to."""
    there, here = tmp_path / "there", tmp_path / "project" / "runs" / "my-run"
    (there / "workers/pi1").mkdir(parents=True)
    (there / "history.csv").write_text(HISTORY)
    return Worker(hosts.action(), str(there), str(there / "workers/pi1"), "s"), there, here


def written(folder):
    """Every file below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def test_name_with_newline_becomes_no_other_file(node, tmp_path, warned):
    """What follows the newline is a line of a listing as well: size, time, an absolute path, and the file to be put there."""
    worker, there, here = node
    target = tmp_path / "outside" / "written"
    for place in (there / f"x\n4 1.0 {target}", there / str(target).lstrip("/")):
        place.parent.mkdir(parents=True)
        place.write_text("evil")
    worker.collect(here)
    assert not target.exists()
    assert written(here) == ["history.csv"]
    assert len(warned) == 1
    assert "x\\n4 1.0" in warned[0]
    assert warned[0].isprintable()


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "epoch-0001.keras",
        "checkpoints/epoch-0001.keras\n",
        "workers/pi2/worker.log",
        "workers/pi1/x\x1b]0;evil\x07.log",
        "summary.json/x",
    ],
)
def test_only_names_that_a_worker_writes_are_fetched(name, node, warned):
    worker, there, here = node
    (there / name).parent.mkdir(parents=True, exist_ok=True)
    (there / name).write_text("evil")
    assert worker.collect(here) == ["history.csv"]
    assert written(here) == ["history.csv"]
    worker.collect(here)
    assert len(warned) == 1
    assert "not a file that workers write" in warned[0]
    assert warned[0].isprintable()


def test_links_on_node_are_neither_followed_nor_fetched(node, tmp_path):
    worker, there, here = node
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "step-1.npz").write_text("secret")
    (there / "state").symlink_to(tmp_path / "secret")
    (there / "summary.json").symlink_to("/etc/passwd")
    (there / "workers/pi1/worker.log").symlink_to("/etc/passwd")
    assert worker.collect(here) == ["history.csv"]
    assert worker.last_lines() == []


@pytest.mark.parametrize("part", ["", "workers", "workers/pi1"])
def test_run_directory_link_itself_is_left_alone(part, node, tmp_path, warned):
    worker, there, here = node
    other = tmp_path / "other" / part
    (other / ("" if part == "workers/pi1" else "pi1" if part else "workers/pi1")).mkdir(parents=True)
    (there / part).rename(tmp_path / "aside")
    for folder in (other, *other.rglob("pi1")):
        (folder / "worker.log").write_text("secret")
    (there / part if part else there).symlink_to(other)
    assert worker.collect(here, "workers/pi1") == []
    assert not here.exists() or written(here) == []
    assert "not fetched" in warned[0]


def test_links_on_this_machine_are_not_followed(node, tmp_path, warned):
    worker, there, here = node
    (there / "state").mkdir()
    (there / "state/step-1.npz").write_text("evil")
    (tmp_path / "elsewhere").mkdir()
    here.mkdir(parents=True)
    (here / "state").symlink_to(tmp_path / "elsewhere")
    (here / "history.csv").symlink_to(tmp_path / "elsewhere" / "history.csv")
    assert worker.collect(here) == []
    assert written(tmp_path / "elsewhere") == []
    assert "state is a link on this machine" in warned[0]


def test_sizes_are_bounded_by_what_run_may_write(node, warned):
    worker, there, here = node
    here.mkdir(parents=True)
    (here / "cluster.json").write_text(json.dumps({"parameters": {"total": 1000}}))
    for name in ("checkpoints/epoch-0001.keras", "workers/pi1/worker.log", "workers/pi1/exit.json"):
        (there / name).parent.mkdir(exist_ok=True)
        with (there / name).open("wb") as stream:
            stream.truncate(2**40)
    assert worker.collect(here) == ["history.csv"]
    assert "epoch-0001.keras (1,048,576 MB, at most 1,024 are its kind's)" in warned[0]
    assert worker.poll().exit is None


def test_file_that_grows_is_cut_off_while_fetched(node, monkeypatch, warned):
    worker, there, here = node
    (there / "workers/pi1/exit.json").write_text('{"exit_code": 0, "ended_at": 1.0}')

    def endless(source, target):
        with open(target, "wb") as stream:
            for _ in range(2**20):
                stream.write(b"x" * 2**16)

    worker.action._connection.fetch_file = endless
    assert worker.collect(here) == []
    assert "File too large" in warned[0]
    assert written(here) == []


def test_file_count_is_bounded_and_results_come_first(node, monkeypatch, warned):
    """The number of files is bounded and junk does not crowd out results."""
    worker, there, here = node
    monkeypatch.setattr(admission, "FILES", 10)
    monkeypatch.setattr(admission, "REFUSED", 5)
    (there / "state").mkdir()
    for number in range(50):
        (there / f"junk {number}").touch()
    assert worker.collect(here) == ["history.csv"]
    for number in range(50):
        (there / f"state/step-{number}.npz").touch()
    worker._warned.clear(), warned.clear()
    assert len(worker.collect(here)) <= 10
    assert "a run has at most 10" in warned[-1]


def test_files_beyond_this_disk_stay_there(node, monkeypatch, warned):
    worker, _, here = node
    monkeypatch.setattr(admission, "RESERVE", 2**62)
    assert worker.collect(here) == []
    assert "do not fit on this machine's disk" in warned[0]


SUMMARY = {
    **dict.fromkeys(("workers", "epochs_done", "epochs", "steps"), 2),
    "state": "SUCCEEDED",
    "seconds_total": 1.0,
    "seconds_training": 1.0,
    "images_per_s": None,
    "best": {"epoch": 1, "val_accuracy": 0.5},
    "weights_sha256": "a" * 64,
    "weights_sha256_by_rank": ["a" * 64] * 2,
}


def test_a_real_summary_is_fetched_and_no_other(node, warned):
    worker, there, here = node
    (there / "summary.json").write_text(json.dumps(SUMMARY | {"state": "\x1b[2J"}))
    assert worker.collect(here) == ["history.csv"]
    assert "is not what a worker writes" in warned[0]
    (there / "summary.json").write_text(json.dumps(SUMMARY))
    assert worker.collect(here) == ["summary.json"]


@pytest.mark.parametrize(
    "text", ["epoch\n1\n", HISTORY + "x,1,1,1,1,1,1,1\n", HISTORY + "2,nan,1,1,1,1,1,1\n", HISTORY + "2,1\n", "\0\n\0", '"']
)
def test_a_history_of_other_values_is_refused(text, node):
    worker, there, here = node
    (there / "history.csv").write_text(text)
    assert written(here) == [] if worker.collect(here) == [] else text == '"'


def test_records_of_no_worker_are_passed_over_once(node, warned):
    worker, there, _ = node
    good = {"t": 1.0, "kind": "steps", "epoch": 1, "step": 5, **NUMBERS}
    huge = '{"t": 1, "kind": "steps", "step": 1' + "0" * 5000 + "}"
    changes = ({"metrics": {"loss": float("nan")}}, {"step": "5"}, {"step": 10**30}, {"kind": ["phase"]}, {"t": 1e400})
    bad = ["7", "[]", "{", "null", '{"t": 1}', '{"kind": "phase"}', "[" * 100_000, huge, "\x1b[2J", "x" * 30_000]
    bad += [json.dumps(good | change) for change in changes]
    log = there / "workers/pi1/metrics.jsonl"
    log.write_text("\n".join([*bad, json.dumps(good), *bad]) + "\n")
    assert worker.poll().records == [good]
    assert f"{2 * len(bad)} lines are not valid records" in warned[0]
    assert worker.poll().records == []
    with log.open("a") as stream:
        stream.write("7\n" + json.dumps(good) + "\n" + json.dumps(good))
    assert worker.poll().records == [good]
    assert len(warned) == 1


def test_texts_of_records_are_fit_for_a_terminal(node):
    worker, there, _ = node
    record = {"t": 1.0, "kind": "phase", "phase": "\x1b]0;evil\x07", "note": "one\ntwo\u202e" + "x" * 1000}
    (there / "workers/pi1/metrics.jsonl").write_text(json.dumps(record) + "\n")
    (seen,) = worker.poll().records
    assert seen["phase"] == "\\x1b]0;evil\\x07"
    assert seen["note"].startswith("one\\ntwo\\u202e")


def test_look_takes_bounded_amount_and_next_goes_on(node, monkeypatch):
    monkeypatch.setattr(worker_access, "LOOK", 1000)
    worker, there, _ = node
    lines = [{"t": float(number), "kind": "heartbeat", "phase": "training ü", "step": number} for number in range(100)]
    (there / "workers/pi1/metrics.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    read, looks = [], 0
    while True:
        seen, looks = worker.poll(), looks + 1
        read += seen.records
        if not seen.more:
            break
        assert seen.heard is None
    assert (read, looks > 5, seen.heard is not None) == (lines, True, True)
    fresh = Worker(worker.action, worker.run, worker.folder, "s")
    assert fresh.poll(latest=True).records[-1] == lines[-1]


def test_a_line_that_never_ends_is_passed_over(node, monkeypatch):
    monkeypatch.setattr(worker_access, "LOOK", 1000)
    worker, there, _ = node
    good = {"t": 1.0, "kind": "heartbeat", "phase": "training", "step": 1}
    (there / "workers/pi1/metrics.jsonl").write_text("x" * 2500 + "\n" + json.dumps(good) + "\n")
    looks = [worker.poll() for _ in range(4)]
    assert [record for seen in looks for record in seen.records] == [good]


@pytest.mark.parametrize(
    "text",
    ["[]", "7", "{}", '{"exit_code": "0", "ended_at": 1}', '{"exit_code": 0, "ended_at": "x"}', "{", '{"exit_code": 999, "ended_at": 1}'],
)
def test_exit_without_a_code_is_a_state(text, node):
    worker, there, _ = node
    (there / "workers/pi1/exit.json").write_text(text)
    seen = worker.poll()
    assert seen.exit is None
    assert seen.unclear.startswith("exit.json: ")


def test_pipes_and_devices_block_nothing(node):
    worker, there, here = node
    for name in ("metrics.jsonl", "exit.json", "worker.log"):
        os.mkfifo(there / "workers/pi1" / name)
    seen = worker.poll()
    assert (seen.records, seen.exit, seen.unclear) == ([], None, "")
    assert worker.last_lines() == []
    assert worker.collect(here) == ["history.csv"]


@pytest.mark.parametrize("answer", ["", "hello", "\x1b[2J" * 1000, "=====lockstep=====" * 9])
def test_shell_that_answers_anything_is_out_of_reach(answer, node):
    worker, _, _ = node
    worker.action._low_level_execute_command = lambda *_, **__: {"rc": 0, "stdout": answer, "stderr": ""}
    with pytest.raises(HostUnreachable) as caught:
        worker.poll()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "entry",
    ["1 2", "x 1.0 history.csv", "1 -1 history.csv", "1 1e99 history.csv", "1" * 400 + " 1 history.csv", " ", "1 1.0 ../x", "1 1.0 /etc/x"],
)
def test_entries_of_no_listing(entry, tmp_path):
    taken, refused = admission.admit(f"{entry}\0\0", admission.kinds("a", 1), None, 2**40)
    assert (taken, len(refused)) == ([], 1)


def test_files_must_fit_together():
    listed = "60 1.0 history.csv\0" + "60 1.0 summary.json\0\0"
    taken, refused = admission.admit(listed, admission.kinds("a", 1), None, 100)
    assert [one.name for one in taken] == ["history.csv"]
    assert [one.name for one in refused] == ["summary.json"]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", "."])
def test_no_name_leads_out_of_the_run_directory(name, tmp_path):
    with pytest.raises(LockstepError):
        admission.destination(tmp_path / "run", name)


def test_every_record_that_a_worker_writes_is_known(tmp_path):
    """A kind of record that is added to the trainer needs its line in trainer/rundir/schemas.py."""
    metrics, row = Metrics(tmp_path / "metrics.jsonl"), dict(zip(COLUMNS, (1, *[0.5] * 7), strict=True))
    metrics.phase("joining", "note")
    metrics.heartbeat()
    metrics.record("steps", epoch=1, step=5, **NUMBERS)
    metrics.record("reduction", name="packed", why="why", measured=True)
    metrics.record("shares", told="told", parts=[1, 2], measured=True)
    metrics.record("straggler", epoch=1, rank=1, cause="quota", **dict.fromkeys(schemas.STRAGGLER, 7))
    metrics.warning("text")
    metrics.record("split", epoch=1, step=5, **dict.fromkeys(schemas.PHASES, 0.1), step_seconds=0.5, images=3)
    metrics.record("epoch", **row)
    metrics.record("staleness", epoch=1, staleness=[0, 3], calls=[7, 2], by_worker=[5, 4])
    metrics.record("evaluation", epoch=1, metrics={"loss": 0.5})
    metrics.record("generation", number=2, rank=0, hosts=["node1", "node3"])
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    kinds = {json.loads(line)["kind"] for line in lines}
    sources = "".join(path.read_text() for path in Path(schemas.__file__).parents[1].rglob("*.py"))
    written = set(re.findall(r'[.]record[(]\s*"(\w+)"', sources))
    assert kinds == set(worker_files.KINDS) == written
    assert worker_files.metrics(lines) == ([json.loads(line) for line in lines], 0)


@pytest.mark.parametrize(
    "change",
    [{"cause": "\x1b[2J"}, {"cause": "{value.__class__}"}, {"cause": []}, {"rank": -1}, {"value": 0.5}, {"own_us": 10**16}, {"usual": "7"}],
)
def test_a_straggler_that_is_none(change):
    """The cause chooses the words that the control node fills in."""
    record = {"t": 1.0, "kind": "straggler", "epoch": 1, "rank": 0, "cause": "load", **dict.fromkeys(schemas.STRAGGLER, 7)}
    assert worker_files.metrics([json.dumps(record)]) == ([record], 0)
    assert worker_files.metrics([json.dumps(record | change)]) == ([], 1)


STEP_TIME = {
    "batch": 64,
    "step_seconds": 0.1,
    "images_per_s": 640.0,
    "transport": "direct",
    "methods": {"packed": {"step_seconds": 0.1, "sums": [16], "exchange_seconds": {"2": 0.001}}},
}


def test_a_step_time_is_read():
    assert worker_files.step_time(json.dumps(STEP_TIME), "pi1") == STEP_TIME


CALIBRATION = {"counts": [1, 3], "predicted": [0.1, 0.7], "observed": [0, 0.7], "error": 0.1, "brier": 0.2}
MISTAKE = {"example": 3, "of": 0, "taken_for": 1, "probability": 0.9, "shape": [2, 1, 3], "rows": ["AAAA", "////"]}
KINDS = {"name": "kind", "classes": ["a", "b\x1b[2J"], "confusion": [[1, 1], [0, 2]]}
SIZES = {"name": "../../size", "errors": ERRORS}
MISFITTING = (
    *({"taken_for": 2}, {"of": -1}, {"probability": 1.5}, {"shape": [2, 1]}, {"shape": [2, 1, 2]}, {"shape": [0, 1, 3], "rows": []}),
    *({"shape": [1000, 1, 3]}, {"rows": ["AAAA"]}, {"rows": ["AAAA", "AAAAAAAA"]}, {"rows": ["AAAA", "<img"]}, {"rows": ["AAAA", 5]}),
)
EVALUATION = {
    "epoch": 1,
    "split": "test",
    "metrics": {"loss": 0.5},
    "images": 4,
    "seconds": 1.0,
    "evaluated_at": "now",
    "outputs": [KINDS, SIZES, {"name": "c", "why": "it has no loss of its own"}],
}


def test_evaluation_is_read_with_names_fit_for_terminal():
    outputs = [KINDS | {"classes": ["a", "b\\x1b[2J"]}, *EVALUATION["outputs"][1:]]
    assert worker_files.evaluation(json.dumps(EVALUATION)) == EVALUATION | {"outputs": outputs}


def test_wrongly_classified_pictures_are_read():
    output = {"name": "kind", "classes": ["a", "b"], "confusion": [[1, 1], [0, 2]], "mistakes": [MISTAKE]}
    assert worker_files.evaluation(json.dumps(EVALUATION | {"outputs": [output]}))["outputs"] == [output]


def test_no_name_of_an_output_becomes_a_path():
    names = ["../../x", "/etc/passwd", "..", "a b", "a-b", "ü" * 500, "x" * 500]
    evaluation = EVALUATION | {"outputs": [SIZES | {"name": name} for name in names]}
    keys = evaluations.keyed(worker_files.evaluation(json.dumps(evaluation)))
    assert list(keys)[:6] == ["errors_.._.._x", "errors__etc_passwd", "errors_..", "errors_a_b", "errors_a_b_2", "errors__"]
    paths = [evaluations.picture_path(Path("/runs/r"), 3, key) for key in keys]
    assert {path.resolve().parent for path in paths} == {Path("/runs/r/evaluations")}
    assert max(len(path.name) for path in paths) < 100


PACKED = STEP_TIME["methods"]["packed"]
SENT = {"name": "powersgd", "why": "compressed", "sent_bytes": 127_528, "transport": "direct", "sums": [115_200, 12_344]}
OTHER_SUMMARIES = (
    *({"launch": {"until": "result", "seconds_from_enter": "soon"}}, {"state": "\x1b[2J"}, {"workers": "2"}, {"best": {"epoch": "1"}}),
    *({"best": []}, {"weights_sha256": "../../etc"}, {"weights_sha256_by_rank": "aa"}, {"steps": 10**400}),
    *({"seconds_total": float("nan")}, {"images_per_s": []}, {"more": [[[[[1]]]]]}),
)
OTHER_REDUCTIONS = (
    *({"sums": ["1"]}, {"sums": [-1]}, {"sums": 5}, {"sums": [1] * 9}, {"transport": "pigeon"}, {"sent_bytes": "many"}),
    {"sent_bytes": -1},
)
OTHER_TIMES = (
    *({"step_seconds": 0}, {"step_seconds": -1}, {"images_per_s": "x"}, {"transport": "pigeon"}, {"methods": []}),
    {"methods": {"packed": {}}},
)
OTHER_METHODS = (
    *({"sums": [-1]}, {"sums": [1] * 9}, {"exchange_seconds": {"two": 0.1}}, {"exchange_seconds": {"2": -0.1}}),
    {"step_seconds": float("nan")},
)
OTHER_MATRICES = (
    *({"classes": []}, {"confusion": [[1, 1]]}, {"calibration": {}}, {"mistakes": [MISTAKE] * 25}, {"confusion": [[0, 0], [0, 0]]}),
    *({"calibration": CALIBRATION | change} for change in ({"counts": [3]}, {"counts": [0, 0]}, {"predicted": [0.5, 7]}, {"error": "x"})),
    *({"mistakes": [MISTAKE | change]} for change in MISFITTING),
    *({"confusion": [[1], [2]]}, {"confusion": []}, {"confusion": 7}, {"classes": 5}, {"name": 5}, {"name": None}),
    *({"calibration": CALIBRATION, "classes": ["a"], "confusion": [[1]]}, {"errors": ERRORS}, {"why": "both"}),
)
OTHER_EVALUATIONS = (
    *({"metrics": {"loss": "x"}}, {"metrics": 5}, {"outputs": 5}, {"outputs": [5]}, {"outputs": [{}]}, {"outputs": [{"name": "a"}]}),
    *({"outputs": [{"name": "a", "why": 5}]}, {"confusion": json.loads("[" * 400 + "]" * 400)}),
)
OTHER_ERRORS = (
    *({"low": 2.0}, {"counts": []}, {"counts": [-1]}, {"counts": [1] * 9999}, {"largest": float("inf")}, {"mean": "x"}),
    {"values": 0.5},
)


def read_time(text):
    return worker_files.step_time(text, "pi1")


@pytest.mark.parametrize(
    ("read", "written"),
    [
        *((worker_files.summary, SUMMARY | change) for change in OTHER_SUMMARIES),
        *((worker_files.summary, SUMMARY | {"reduction": SENT | change}) for change in OTHER_REDUCTIONS),
        *((read_time, STEP_TIME | change) for change in OTHER_TIMES),
        *((read_time, STEP_TIME | {"methods": {"packed": PACKED | change}}) for change in OTHER_METHODS),
        *((worker_files.evaluation, EVALUATION | {"outputs": [KINDS | change]}) for change in OTHER_MATRICES),
        *((worker_files.evaluation, EVALUATION | change) for change in OTHER_EVALUATIONS),
        *((worker_files.evaluation, EVALUATION | {"outputs": [SIZES | {"errors": ERRORS | change}]}) for change in OTHER_ERRORS),
    ],
)
def test_what_no_worker_writes_is_refused(read, written):
    with pytest.raises(LockstepError, match=r"^(summary.json|pi1: steptime|evaluation): .* is not what a worker writes$"):
        read(json.dumps(written))


@pytest.mark.parametrize("reduction", [SENT, {"name": "packed", "why": "of an earlier version"}])
def test_a_reduction_is_read(reduction):
    assert worker_files.summary(json.dumps(SUMMARY | {"reduction": reduction}))["reduction"] == reduction


@pytest.mark.parametrize("text", ["{", '{"loss": NaN}', "[Infinity]", "-Infinity", "[" * 100_000])
def test_what_is_no_json_is_an_error(text):
    """Among it Python's own extensions, and what nests too deeply."""
    with pytest.raises(ValueError, match=r".+"):
        worker_files.parse(text)


def test_evaluation_of_earlier_version_has_one_output():
    kept = {name: value for name, value in EVALUATION.items() if name not in ("metrics", "outputs")}
    matrix = {"classes": ["a", "b"], "confusion": [[1, 1], [0, 0]]}
    earliest = worker_files.evaluation(json.dumps(kept | {"loss": 0.5, "accuracy": 0.5} | matrix))
    assert earliest["metrics"] == {"loss": 0.5, "accuracy": 0.5}
    assert earliest["outputs"] == [{"name": "", **matrix}]
    assert "confusion" not in earliest
    metrics = kept | {"metrics": {"mae": 0.5}}
    assert worker_files.evaluation(json.dumps(metrics | {"errors": ERRORS}))["outputs"] == [{"name": "", "errors": ERRORS}]
    assert worker_files.evaluation(json.dumps(metrics))["outputs"] == []
    with pytest.raises(LockstepError, match="has neither a confusion matrix of its classes nor errors"):
        worker_files.evaluation(json.dumps(kept | {"loss": 0.5} | matrix | {"confusion": [[1, 1]]}))


def test_prediction_fetches_asked_outputs_of_bounded_size(node, warned):
    """Of a prediction only the outputs asked for are fetched and none that is too large."""
    worker, there, here = node
    names = ("output-0000.npy", "output-0001.npy", "output-0002.npy", "config.yml", "model.keras", "data/rows.npy", "exit.json")
    for name in names:
        (there / "predict" / name).parent.mkdir(parents=True, exist_ok=True)
        (there / "predict" / name).write_bytes(b"x" * 100_000)
    worker.folder = f"{there}/predict"
    assert worker.collect(here, "predict", outputs=[100_000, 50_000]) == ["output-0000.npy"]
    assert "predict/output-0001.npy (0 MB, at most 0 are its kind's)" in warned[0]
    assert "output-0002" not in warned[0]
    assert written(here) == ["predict/output-0000.npy"]


def test_foreign_prediction_is_no_part_of_the_run(node, warned):
    """What another command predicts is no part of the run."""
    worker, there, here = node
    for name in ("output-0000.npy", "data/rows.npy", "worker.log"):
        (there / "predict" / name).parent.mkdir(parents=True, exist_ok=True)
        (there / "predict" / name).touch()
    assert worker.collect(here) == ["history.csv"]
    assert warned == []


def test_outputs_that_are_links_are_not_followed(node, tmp_path, warned):
    worker, there, here = node
    (tmp_path / "secret").write_text("secret")
    (there / "predict").mkdir()
    (there / "predict/output-0000.npy").symlink_to(tmp_path / "secret")
    worker.folder = f"{there}/predict"
    assert worker.collect(here, "predict", outputs=[1000]) == []


@pytest.mark.parametrize("host", ["node-1.example.org", "a+b", "x[1]", "näh"])
def test_names_of_hosts_mean_themselves_on_both_sides(host, node):
    worker, there, here = node
    worker.folder = f"{worker.run}/workers/{host}"
    for name in (host, f"{host}x", "nodeX1"):
        (there / "workers" / name).mkdir(exist_ok=True)
        (there / "workers" / name / "worker.log").write_text("log")
    assert sorted(worker.collect(here)) == ["history.csv", f"workers/{host}/worker.log"]
