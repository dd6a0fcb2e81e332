"""What a profiler's trace says of a step."""

import sys

import pytest

from tests.unit.conftest import ROOT, load_file

trace = sys.modules.setdefault("trace_step", load_file(ROOT / "benchmarks" / "scripts" / "trace_step.py", "trace_step"))
ASKED = "while/cond/_0/while/Less:Less"
BODY = "while/body/_1/while"


def step_of(begin):
    """Two threads: the host's op sends while the other thread is still computing."""
    ops = [
        (1, ASKED, 0, 0),
        (1, f"{BODY}/task_cnn_1/dense_1/Relu:_MklNativeFusedMatMul", 1, 4),
        (1, "while/body/_1/gradient_tape/while/task_cnn_1/dense_1/MatMul/MatMul_1:_MklMatMul", 4, 9),
        (2, f"{BODY}/PyFunc:PyFunc", 5, 9),
        (2, trace.SENDING, 6, 8),
        (1, f"{BODY}/AssignVariableOp:AssignVariableOp", 9, 10),
    ]
    return [trace.Span(thread, name, begin + first, begin + last) for thread, name, first, last in ops]


def test_a_trace_falls_into_steps_where_the_loop_asks():
    last = trace.Span(1, ASKED, 40.0, 40.0)
    first, second = trace.steps([last, *step_of(20), *step_of(0)])
    assert first == second
    assert len(first) == 6
    assert trace.length(second) == 10


def test_what_is_sent_from_within_an_op_counts_once():
    assert trace.milliseconds(step_of(0)) == pytest.approx(
        {"forward": 3, "backward": 5, "compression and update": 2, trace.SENDING: 2, "other": 1}
    )


def test_spans_are_drawn(tmp_path):
    trace.draw(step_of(0), tmp_path / "step.png")
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
