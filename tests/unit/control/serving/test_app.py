"""The server as its clients see it: over HTTP, from a real process' sockets."""

import base64
import contextlib
import http.client
import json
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from control.serving import app, server
from control.serving.server import _engine_command
from tests.project import await_until
from tests.unit.control.serving.conftest import SIZE, Running, png
from tests.unit.control.serving.test_saved_model import snapshot
from trainer.data.spec import of_images


@pytest.fixture(scope="module", autouse=True)
def _idle():
    """Silent connections end soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "IDLE_S", 1)
        yield


class Served(Running):
    """A model that is served."""

    def __init__(self, folder):
        super().__init__(app.application(folder.name, _engine_command(folder, 2**31), 60), timeout_keep_alive=1)
        await_until(lambda: self.ask("/healthz")[0] == 200, 60, "the first version")

    def ask(self, path, body=None, method=None, headers=None):
        """Status and answer: an object, if it is JSON."""
        connection = http.client.HTTPConnection(*self.socket.getsockname()[:2], timeout=60)
        text = body if body is None or isinstance(body, bytes) else json.dumps(body)
        connection.request(method or ("POST" if body is not None else "GET"), path, text, headers or {})
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        return response.status, json.loads(answer) if is_json else answer.decode()


def serving(folder):
    """A server for a test."""
    served = Served(folder)
    yield served
    served.stop()


@pytest.fixture(scope="module")
def pictures(exports):
    yield from serving(exports["pictures"])


@pytest.fixture(scope="module")
def rows(exports):
    yield from serving(exports["rows"])


def test_answers_are_the_snapshots_own(pictures, runs):
    images = np.random.default_rng(0).integers(0, 255, (5, *SIZE), dtype=np.uint8)
    (expected,) = snapshot(runs["pictures"], of_images(SIZE), 3).call((images,))
    encoded = [{"b64": base64.b64encode(png(image)).decode()} for image in images]
    for body in ({"instances": encoded}, {"instances": images.tolist()}, {"instances": encoded, "signature_name": "image_bytes"}):
        status, answer = pictures.ask("/v1/models/pictures:predict", body)
        assert status == 200
        np.testing.assert_array_equal(np.float32(answer["predictions"]), expected)
    status, answer = pictures.ask("/v1/models/pictures/versions/1:predict", {"inputs": {"image": encoded}})
    np.testing.assert_array_equal(np.float32(answer["outputs"]), expected)
    status, answer = pictures.ask("/v1/models/pictures:classify", {"examples": [{"image_bytes": encoded[0]}]})
    (scores,) = answer["results"]
    assert [name for name, _ in scores] == ["cat", "dog", "emu"]
    np.testing.assert_array_equal(np.float32([score for _, score in scores]), expected[0])


def test_lines_and_examples_of_a_table(rows):
    row = {"miles": 1.5, "company": "taxi"}
    (_, one), (_, two), (_, three) = (
        rows.ask("/v1/models/rows:predict", {"instances": [row]}),
        rows.ask("/v1/models/rows:predict", {"signature_name": "csv", "instances": ["1.5,taxi"]}),
        rows.ask("/v1/models/rows:regress", {"examples": [row]}),
    )
    assert one == two
    assert three["results"] == one["predictions"][0]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/models/rows:predict", b"{", 400, "is not valid JSON"),
        ("/v1/models/rows:predict", {"instances": [{"miles": 1}]}, 400, "missing: company"),
        ("/v1/models/rows:predict", {"signature_name": "csv", "instances": ["far,taxi"]}, 400, "Field 0 in record 0 is not a valid float"),
        ("/v1/models/rows:predict", {"signature_name": "csv", "instances": ["1"]}, 400, "Expect 2 fields but have 1 in record 0"),
        ("/v1/models/rows:predict", {"signature_name": "examples", "instances": ["rubbish"]}, 400, "row 0: 7 bytes that are no serialized"),
        ("/v1/models/rows:predict", {"signature_name": "csv", "instances": [{"b64": "MSz/"}, "far,\u00ff"]}, 400, "not a valid float"),
        ("/v1/models/rows:classify", {"examples": [{"miles": 1, "company": "a"}]}, 400, "no classes"),
        ("/v1/models/rows/versions/9:predict", {"instances": [1]}, 404, "Servable not found for request: Specific(rows, 9); versions: 1"),
        ("/v1/models/rows/versions/x:predict", {"instances": [1]}, 404, "version x is not a number"),
        ("/v1/models/other:predict", {"instances": [1]}, 404, "there is nothing at /v1/models/other:predict"),
        ("/v1/models/rows:explode", {"instances": [1]}, 404, "there is nothing at"),
    ],
)
def test_what_is_wrong_is_said(path, body, status, words, rows):
    got, answer = rows.ask(path, body)
    assert got == status
    assert words in answer["error"]
    assert rows.ask("/healthz") == (200, "ok\n")


def test_body_without_end_is_refused_unread(rows):
    connection, part, sent = opening(rows, "Transfer-Encoding", "chunked"), b"[" * 2**20, 0
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while sent < 2**10:
            connection.send(b"%x\r\n%s\r\n" % (len(part), part))
            sent += 1
    assert sent < 3 * app.MOST_BYTES / 2**20, "MiB: the body, what is read after the refusal, and buffers"


def test_who_still_sends_sees_the_refusal(rows, monkeypatch):
    monkeypatch.setattr(app, "MOST_BYTES", 2**20)
    for _ in range(2):
        status, answer = rows.ask("/v1/models/rows:predict", b" " * 24 * 2**20)
        assert (status, answer["error"][:36]) == (413, "the body is larger than 1 MiB; send ")


def test_a_huge_body_is_told_so(rows):
    status, words = refusal(opening(rows, "Content-Length", str(app.MOST_BYTES + 1)))
    assert (status, words[:36]) == (413, "the body is larger than 32 MiB; send")


def opening(served, name, value):
    """A connection on which the head of a request came."""
    connection = http.client.HTTPConnection(*served.socket.getsockname()[:2], timeout=60)
    connection.putrequest("POST", "/v1/models/rows:predict")
    connection.putheader(name, value)
    connection.endheaders()
    return connection


def refusal(connection):
    """Status and error of the answer."""
    response = connection.getresponse()
    return response.status, json.loads(response.read())["error"]


def test_status_and_metadata(rows):
    assert rows.ask("/v1/models/rows")[1] == {
        "model_version_status": [{"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}]
    }
    assert rows.ask("/v1/models/rows/versions/4")[0] == 404
    (_, answer) = rows.ask("/v1/models/rows/metadata")
    assert answer["model_spec"] == {"name": "rows", "signature_name": "", "version": "1"}
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    assert sorted(signatures) == ["csv", "examples", "serving_default"]
    tensor = {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}, "name": "miles"}
    assert signatures["serving_default"]["inputs"]["miles"] == tensor
    assert signatures["csv"]["inputs"]["line"]["dtype"] == "DT_STRING"


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        # A web page elsewhere whose name is made to resolve to this machine.
        ("Host", "evil.example", 400),
        ("Sec-Fetch-Site", "cross-site", 403),
        ("Sec-Fetch-Site", "same-site", 403),
        ("Sec-Fetch-Site", "same-origin", 200),
    ],
)
def test_a_page_of_another_site_gets_no_answer(name, value, status, rows):
    body = {"instances": [{"miles": 1, "company": "a"}]}
    assert rows.ask("/v1/models/rows:predict", body, headers={name: value})[0] == status


def test_body_that_does_not_come_ends_after_while(rows, monkeypatch):
    monkeypatch.setattr(app, "READ_S", 0.2)
    connection = opening(rows, "Content-Length", "100")
    connection.send(b"{")
    assert refusal(connection) == (408, "the body did not come in time: 10 s for each part of it, 60 s in all")


def test_bodies_beyond_the_memory_for_them_are_refused(rows, monkeypatch):
    monkeypatch.setattr(app, "MOST_BYTES_AT_ONCE", 10)
    body = b" " * (app.FREE_BYTES + 11)
    status, answer = rows.ask("/v1/models/rows:predict", body)
    assert status == 503
    assert "0 MiB of requests are held, and at most 0 may be" in answer["error"]
    for _ in range(2):
        assert rows.ask("/v1/models/rows:predict", body[:-1])[0] == 400, "one that fits is read, and freed"


def test_what_is_only_announced_keeps_nobody_out(rows, monkeypatch):
    """Neither a length, nor a body in chunks that ends soon."""
    monkeypatch.setattr(app, "MOST_BYTES_AT_ONCE", app.MOST_BYTES)
    announcing = [opening(rows, "Content-Length", str(app.MOST_BYTES)) for _ in range(3)]
    body = b'{"instances": [{"miles": 1, "company": "a"}]}'
    for connection in announcing:
        assert rows.ask("/v1/models/rows:predict", body)[0] == 200
        assert (
            rows.ask("/v1/models/rows:predict", b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body), headers={"Transfer-Encoding": "chunked"})[0]
            == 200
        )
        connection.close()


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: 127", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /he"])
def test_connection_on_which_no_request_comes_is_ended(rows, sent):
    """Others are not refused for it."""
    with socket.create_connection(rows.socket.getsockname()[:2], timeout=60) as silent:
        silent.sendall(sent)
        answer = b""
        try:
            while part := silent.recv(4096):
                answer += part
        except ConnectionResetError:
            pass
    assert answer.count(b"HTTP/1.1 200") == sent.count(b"\r\n\r\n")


def test_parallel_requests_are_all_answered_and_counted(rows):
    """A request at fault spoils none of those that are computed with it."""

    def ask(number):
        if number % 4 == 3:
            return rows.ask("/v1/models/rows:predict", {"instances": [number]})
        if number % 8 == 5:
            return rows.ask("/v1/models/rows:predict", {"signature_name": "csv", "instances": ["far,cab"]})
        lines = [f"{number},cab"] * (number % 3 + 1)
        return rows.ask("/v1/models/rows:predict", {"signature_name": "csv", "instances": lines})

    def value(metrics, start):
        return next((float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(start)), 0)

    (_, before) = rows.ask("/metrics")
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(64)))
    (_, after) = rows.ask("/metrics")
    faulty = [number for number in range(64) if number % 4 == 3 or number % 8 == 5]
    assert [number for number, (status, _) in enumerate(answers) if status == 400] == faulty
    for number, (_, answer) in enumerate(answers):
        if number not in faulty:
            (_, alone) = rows.ask("/v1/models/rows:predict", {"instances": [{"miles": number, "company": "cab"}]})
            np.testing.assert_allclose(answer["predictions"], alone["predictions"] * (number % 3 + 1), rtol=1e-6)
    bad = 'lockstep_requests_total{method="predict",status="400"} '
    assert value(after, bad) - value(before, bad) == len(faulty)
    assert "lockstep_version 1.0" in after
    assert value(after, 'lockstep_batch_rows_bucket{le="1.0"}') < value(after, "lockstep_batch_rows_count"), "some were computed together"
    assert rows.ask("/monitoring/prometheus/metrics")[0] == 200


def test_many_requests_at_once_are_all_answered(pictures):
    """Images are converted in several threads, so the server holds several bodies."""
    body = {"instances": [{"b64": base64.b64encode(png(np.full(SIZE, 7, np.uint8))).decode()}] * 20}
    with ThreadPoolExecutor(64) as pool:
        statuses = list(pool.map(lambda _: pictures.ask("/v1/models/pictures:predict", body)[0], range(192)))
    assert statuses == [200] * 192


@pytest.fixture
def moving(exports, tmp_path):
    """A model whose versions may change, and its server."""
    folder = tmp_path / "rows"
    shutil.copytree(exports["rows"], folder)
    for served in serving(folder):
        yield folder, served


def test_newer_version_is_served_unless_damaged(moving):
    folder, served = moving
    body = {"instances": [{"miles": 1, "company": "a"}]}
    first = served.ask("/v1/models/rows:predict", body)
    shutil.copytree(folder / "1", folder / ".part")
    (folder / ".part" / "saved_model.pb").write_bytes(b"rubbish")
    (folder / ".part").rename(folder / "2")
    await_until(lambda: "END" in states(served).values(), 20, "the look at version 2")
    assert served.ask("/v1/models/rows:predict", body) == first
    shutil.copytree(folder / "1", folder / ".part")
    (folder / ".part").rename(folder / "3")
    await_until(lambda: "lockstep_version 3.0" in served.ask("/metrics")[1], 20, "version 3")
    assert served.ask("/v1/models/rows:predict", body) == first == served.ask("/v1/models/rows/versions/1:predict", body)
    assert states(served) == {"1": "AVAILABLE", "2": "END", "3": "AVAILABLE"}


def states(served):
    """State of each version."""
    return {one["version"]: one["state"] for one in served.ask("/v1/models/rows")[1]["model_version_status"]}


def test_withdrawn_version_is_refused_at_once(moving):
    folder, served = moving
    shutil.rmtree(folder / "1")
    status, answer = served.ask("/v1/models/rows:predict", {"instances": [{"miles": 1, "company": "a"}]})
    assert (status, answer["error"]) == (404, "Servable not found for request: Latest(rows); versions: none")
    await_until(lambda: served.ask("/healthz")[0] == 503, 20, "health without a version")


def test_a_name_can_not_leave_the_page(exports, tmp_path):
    """Classes come from the folders of a data set."""
    folder = tmp_path / "pictures"
    shutil.copytree(exports["pictures"], folder)
    path = folder / "1" / "lockstep.json"
    path.write_text(path.read_text().replace("emu", "</script><img src=x onerror=alert(1)>"))
    for served in serving(folder):
        status, page = served.ask("/")
        assert status == 200
        assert "<img src=x" not in page
        assert "\\u003c/script>\\u003cimg" in page
