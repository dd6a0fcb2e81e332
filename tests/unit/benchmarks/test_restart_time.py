from benchmarks.scripts.restart_time import KILL, PARTS, parts
from trainer.rundir.phases import Phase


def record(t, kind, **more):
    return {"t": t, "kind": kind, **more}


BEFORE = [record(1.0, "phase", phase="training"), record(2.0, "steps"), record(9.0, "heartbeat", phase="training")]
AFTER = [
    record(10.5, "phase", phase=Phase.REJOINING),
    record(11.5, "generation"),
    record(13.5, "phase", phase="joining"),
    record(16.5, "phase", phase="training"),
    record(17.5, "phase", phase="training"),
    record(17.0, "steps"),
    record(18.0, "steps"),
]


def test_each_part_counts_from_the_one_before_and_what_was_before_the_kill_does_not():
    seconds = parts(10.0, BEFORE + AFTER)
    assert seconds == {Phase.REJOINING: 0.5, "generation": 1.0, "joining": 2.0, "training": 3.0, "steps": 0.5}
    assert set(seconds) <= set(PARTS)


def test_without_a_restart_there_is_nothing():
    assert parts(10.0, BEFORE) == {}
    assert parts(10.0, [*BEFORE, record(10.2, "steps")]) == {}


def test_the_command_names_the_file_of_the_run():
    assert "{{ (worker_root ~ '/runs/my-run/workers/' ~ inventory_hostname ~ '/supervisor.json') | quote }}" in KILL.format(run="my-run")
