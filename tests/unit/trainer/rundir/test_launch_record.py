"""The record of a launch: its file has the entries that it always had, and older files can be read."""

import json

import pytest

from trainer.common.plain_values import from_plain, to_plain
from trainer.rundir.launch_record import Host, LaunchRecord

TF_CONFIG = {"cluster": {"worker": ["10.0.0.1:12345"]}, "task": {"type": "worker", "index": 0}}
HOST = {"rank": 0, "name": "node1", "address": "10.0.0.1", "port": 12345, "direct_port": 13345, "root": "/srv", "tf_config": TF_CONFIG}
HOST |= {"environment": {"A": "1"}, "threads": 2, "python": "3.12.3", "packages": {"tensorflow": "2.19"}, "cores": 2, "silence": 45.0}
RECORD = {"run": "one", "id": "0123456789abcdef", "created_at": "2026-11-30T15:00:00+00:00", "entered_at": None, "launched_at": 1.5}
RECORD |= {"revision": None, "code": "trainer-1.zip", "code_sha256": "s", "compiled": None, "kept": {}, "counts": {"workers": 1}}
RECORD |= {"parameters": {"total": 9, "trainable": 9}, "dataset": {"name": "digits", "classes": ["0"], "digest": "d"}, "hosts": [HOST]}
OPTIONAL = {
    "recovery": {"elastic": False},
    "script": {"main": "main.py"},
    "ticket": "1-ab",
    "spares": [{**HOST, "rank": 1, "tf_config": {}, "server_port": 12845, "port_chosen": True, "role": "ps", "gpus": 1, "batch_size": "8"}],
    "failed_before": {"host": "node1"},
    "launch": "ab",
    "slurm": {"folder": "/x", "job": "7", "told": True},
}


@pytest.mark.parametrize("record", [RECORD, RECORD | OPTIONAL])
def test_the_file_keeps_its_entries(record):
    assert to_plain(from_plain(LaunchRecord, json.loads(json.dumps(record)))) == record


def test_an_older_file_is_read(tmp_path):
    (tmp_path / "cluster.json").write_text('{"hosts": [{"name": "a"}], "endpoints": ["a:1"]}')
    record = LaunchRecord.read(tmp_path)
    assert (bool(record), record.hosts, record.launched_at) == (True, [Host(name="a")], 0.0)


@pytest.mark.parametrize("run", [None, "none"])
def test_never_launched_has_empty_record(run, tmp_path):
    record = LaunchRecord.read(run and tmp_path / run)
    assert not record
    assert record.posts == []
