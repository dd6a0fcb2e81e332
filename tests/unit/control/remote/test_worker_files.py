"""What a host says in JSON."""

import pytest

from control.remote import worker_files


@pytest.mark.parametrize("text", ["{", '{"loss": NaN}', "[Infinity]", "-Infinity", "[" * 100_000])
def test_what_is_no_json_is_an_error(text):
    """Among it Python's own extensions, and what nests too deeply."""
    with pytest.raises(ValueError, match=r".+"):
        worker_files.parse(text)


def test_numbers_are_parsed():
    assert worker_files.parse(b'{"loss": 0.5, "step": 3}') == {"loss": 0.5, "step": 3}
