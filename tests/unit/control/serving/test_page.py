"""The page to try a model, in Chromium."""

import numpy as np
import pytest

from tests import pages
from tests.unit.control.serving.conftest import SIZE
from tests.unit.control.serving.test_app import serving
from tests.unit.control.serving.test_saved_model import png


@pytest.fixture(params=["pictures", "rows", "pair"])
def served(request, exports):
    for one in serving(exports[request.param]):
        yield request.param, one


@pytest.fixture(scope="module")
def browser():
    with pages.chromium() as one:
        yield one


def test_a_picture_or_a_row_is_answered(served, browser, tmp_path):
    name, one = served
    host, port = one.socket.getsockname()[:2]
    with pages.opened(browser, f"http://{host}:{port}/") as shown:
        page = shown.page
        assert page.title() == name
        assert page.inner_text("#what") == f"version 1: {name}, epoch 3"
        if name == "pictures":
            picture = tmp_path / "one.png"
            picture.write_bytes(png(np.full(SIZE, 90, np.uint8)))
            page.set_input_files("input[type=file]", picture)
        else:
            values = {"miles": "1.5", "company": "taxi"} if name == "rows" else {"x_0": "[1, 2]", "x_1": "[3, 4, 5]"}
            for field, value in values.items():
                page.fill(f"[name={field}]", value)
            page.click("text=Predict")
        page.wait_for_selector("#answer table")
        words = page.inner_text("#answer")
        assert all(label in words for label in {"pictures": ["cat", "dog", "emu"], "rows": ["tip"], "pair": ["out"]}[name])
        shown.screenshot(tmp_path / "page.png")
        assert (shown.errors, shown.failed, shown.overflow()) == ([], [], 0)


def test_error_is_shown_until_the_next_answer(exports, browser, tmp_path):
    """What is wrong is shown and goes with the next answer."""
    for one in serving(exports["rows"]):
        host, port = one.socket.getsockname()[:2]
        with pages.opened(browser, f"http://{host}:{port}/") as shown:
            page = shown.page
            page.fill("[name=company]", "taxi")
            page.click("text=Predict")
            assert "Fill in every field" in page.inner_text("#error")
            page.fill("[name=miles]", '"far"')
            page.click("text=Predict")
            page.wait_for_selector("#error:has-text('not of type float32')")
            page.fill("[name=miles]", "2")
            page.click("text=Predict")
            page.wait_for_selector("#answer table")
            assert page.inner_text("#error") == ""


def test_a_file_that_is_no_picture_is_refused(exports, browser, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("hello")
    for one in serving(exports["pictures"]):
        host, port = one.socket.getsockname()[:2]
        with pages.opened(browser, f"http://{host}:{port}/") as shown:
            page = shown.page
            page.set_input_files("input[type=file]", notes)
            page.wait_for_selector("#error:has-text('image')")
            assert page.inner_text("#error") == "image: not a JPEG, PNG, BMP or GIF"
            page.wait_for_selector("text=Drop a picture here")
            assert page.query_selector("#drop img") is None
