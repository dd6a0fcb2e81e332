"""What the files of a run's workers say of it."""

import pytest

from control.runs import status


def seen(host: str, ended: int | None = None, alive: bool = False, records: bool = True) -> dict:
    phases = [{"kind": "phase", "phase": "training"}] if records else []
    return {"host": host, **status.worker(phases, None if ended is None else {"exit_code": ended}, alive, 1.0)}


def left_alone(*found: dict) -> tuple[list[str], list[str]]:
    return status.left_alone(list(found), [one["host"] for one in found])


def test_workers_are_left_alone_by_one_that_ended_before_its_time():
    assert left_alone(seen("a", alive=True), seen("b", ended=137), seen("c", alive=True)) == (["b"], ["a", "c"])
    assert left_alone(seen("a", alive=True), seen("b")) == (["b"], ["a"])
    assert left_alone({"host": "b", "state": "unreachable", "note": ""}, seen("c", ended=1)) == (["c"], [])


def test_none_is_left_alone_by_one_that_is_done_or_about_to_start_or_cannot_be_asked():
    assert left_alone(seen("a", alive=True), seen("b", alive=True)) == ([], [])
    assert left_alone(seen("a", alive=True), seen("b", ended=0)) == ([], [])
    assert left_alone(seen("a", alive=True), seen("b", records=False)) == ([], [])
    assert left_alone(seen("a", alive=True), {"host": "b", "state": "unreachable", "note": ""}) == ([], [])


@pytest.mark.parametrize("launched", [[], ["a"], ["b", "a"], ["a", "c"], ["a", "b", "c"]])
def test_none_is_left_alone_by_a_host_whose_files_are_of_an_older_launch(launched):
    assert status.left_alone([seen("a", alive=True), seen("b", ended=137)], launched) == ([], [])
