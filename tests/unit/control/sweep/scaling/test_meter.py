"""Joules from a metering plug: a stand-in that answers as known ones do."""

import http.server
import json
import threading

import pytest

from control.sweep.scaling import meter
from tests.project import await_until
from trainer.common.errors import LockstepError


@pytest.fixture
def plug():
    """A plug on the loopback; `plug.answer` is what it says next, `plug.url` where."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(server.answer).encode() if not isinstance(server.answer, bytes) else server.answer
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    server.answer = {"apower": 7.5}
    server.url = f"http://127.0.0.1:{server.server_port}/status"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "answer",
    [
        {"id": 0, "output": True, "apower": 31, "aenergy": {"total": 5.2}},
        {"meters": [{"power": 31.0, "total": 99}]},
        {"StatusSNS": {"ENERGY": {"Power": 31, "Total": 1.5}}},
        {"power": 31.0},
        {"watts": 31},
    ],
)
def test_known_plugs(plug, answer):
    plug.answer = answer
    assert meter.watts(plug.url) == 31.0


def test_answer_without_watts_is_refused(plug):
    plug.answer = {"meters": [], "power": True}
    with pytest.raises(
        LockstepError, match=r'no watts in its answer \{"meters": \[\], "power": true\}; looked for: apower, meters\.0\.power'
    ):
        meter.watts(plug.url)
    plug.answer = b"<html>"
    with pytest.raises(LockstepError, match=r"/status: no JSON answer \(Expecting value.*\); open that address in a browser"):
        meter.watts(plug.url)


def test_nobody_answers(port):
    url = f"http://127.0.0.1:{port}/"
    with pytest.raises(LockstepError, match=r"no JSON answer \(.*refused\); open that address in a browser"):
        meter.watts(url)


def test_only_the_web_is_asked():
    with pytest.raises(LockstepError, match=r"^meter=file:///etc/passwd: expected an address that begins with http:// or https://$"):
        meter.watts("file:///etc/passwd")


def test_samples_come_until_the_block_ends(plug, monkeypatch):
    monkeypatch.setattr(meter, "EVERY_S", 0.01)
    running = set(threading.enumerate())
    with meter.metering(plug.url) as samples:
        await_until(lambda: len(samples) >= 5, 60, "samples", every=0.01)
    assert {value for _, value in samples} == {7.5}
    await_until(lambda: running >= set(threading.enumerate()), 60, "the end of the thread that takes samples", every=0.01)
    with meter.metering(None) as samples:
        pass
    assert samples == []


def test_joules_are_watts_times_seconds():
    steady = [(float(second), 10.0) for second in range(-5, 31)]
    assert meter.joules(steady, 0.5, 20.5) == pytest.approx(200.0)
    rising = [(float(second), float(second)) for second in range(31)]
    assert meter.joules(rising, 0.0, 20.0) == pytest.approx(200.0)
    gap = [(float(second), 10.0) for second in range(21) if second not in (7, 8, 9)]
    assert meter.joules(gap, 0.0, 20.0) == pytest.approx(200.0)
    with pytest.raises(LockstepError, match=r"^the meter answered 3 times in 20 s; expected at least one answer in 5 s$"):
        meter.joules([(1.0, 10.0), (10.0, 10.0), (19.0, 10.0)], 0.0, 20.0)
