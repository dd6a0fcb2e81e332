"""The page to try a model, in Chromium."""

import contextlib

import numpy as np
import pytest

from tests import pages
from tests.unit.control.serving.conftest import SIZE, png
from tests.unit.control.serving.test_app import serving


@pytest.fixture(scope="module")
def browser():
    with pages.chromium() as one:
        yield one


@pytest.fixture
def shown(browser, exports):
    """Open the page of a model that is served."""
    with contextlib.ExitStack() as stack:

        def open_page(name):
            one = stack.enter_context(contextlib.contextmanager(serving)(exports[name]))
            host, port = one.socket.getsockname()[:2]
            return stack.enter_context(pages.opened(browser, f"http://{host}:{port}/"))

        yield open_page


@pytest.mark.parametrize(
    ("name", "values", "labels"),
    [
        ("pictures", {}, ["cat", "dog", "emu"]),
        ("rows", {"miles": "1.5", "company": "taxi"}, ["tip"]),
        ("pair", {"x_0": "[1, 2]", "x_1": "[3, 4, 5]"}, ["out"]),
    ],
)
def test_a_picture_or_a_row_is_answered(name, values, labels, shown, tmp_path):
    opened = shown(name)
    page = opened.page
    assert page.title() == name
    assert page.inner_text("#what") == f"version 1: {name}, epoch 3"
    if values:
        for field, value in values.items():
            page.fill(f"[name={field}]", value)
        page.click("text=Predict")
    else:
        (tmp_path / "one.png").write_bytes(png(np.full(SIZE, 90, np.uint8)))
        page.set_input_files("input[type=file]", tmp_path / "one.png")
    page.wait_for_selector("#answer table")
    assert all(label in page.inner_text("#answer") for label in labels)
    opened.screenshot(tmp_path / "page.png")
    assert (opened.errors, opened.failed, opened.overflow()) == ([], [], 0)


def test_error_is_shown_until_the_next_answer(shown):
    page = shown("rows").page
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


def test_a_file_that_is_no_picture_is_refused(shown, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    page = shown("pictures").page
    page.set_input_files("input[type=file]", tmp_path / "notes.txt")
    page.wait_for_selector("#error:has-text('image')")
    assert page.inner_text("#error") == "image: not a JPEG, PNG, BMP or GIF"
    page.wait_for_selector("text=Drop a picture here")
    assert page.query_selector("#drop img") is None
