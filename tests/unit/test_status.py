"""What the files of a run's workers say of it."""

from trainer.analysis import status


def seen(host: str, ended: int | None = None, alive: bool = False, records: bool = True) -> dict:
    phases = [{"kind": "phase", "phase": "training"}] if records else []
    return {"host": host, **status.worker(phases, None if ended is None else {"exit_code": ended}, alive, 1.0)}


def test_workers_are_left_alone_by_one_that_ended_before_its_time():
    assert status.left_alone([seen("a", alive=True), seen("b", ended=137), seen("c", alive=True)]) == (["b"], ["a", "c"])
    assert status.left_alone([seen("a", alive=True), seen("b")]) == (["b"], ["a"])
    assert status.left_alone([{"host": "b", "state": "unreachable", "note": ""}, seen("c", ended=1)]) == (["c"], [])


def test_none_is_left_alone_by_one_that_is_done_or_about_to_start_or_cannot_be_asked():
    assert status.left_alone([seen("a", alive=True), seen("b", alive=True)]) == ([], [])
    assert status.left_alone([seen("a", alive=True), seen("b", ended=0)]) == ([], [])
    assert status.left_alone([seen("a", alive=True), seen("b", records=False)]) == ([], [])
    assert status.left_alone([seen("a", alive=True), {"host": "b", "state": "unreachable", "note": ""}]) == ([], [])
