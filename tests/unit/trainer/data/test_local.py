"""Folders that a node makes once from a data set."""

from trainer.data import local_copy


def test_a_changed_folder_is_built_again(tmp_path):
    """Also where its size is the same."""
    folder, built = tmp_path / "cache", []

    def build(part) -> None:
        (part / "pixels").write_bytes(b"right")
        built.append(1)

    local_copy.once(folder, "5e", build)
    local_copy.once(folder, "5e", build)
    assert len(built) == 1
    (folder / "pixels").write_bytes(b"wrong")
    local_copy.once(folder, "5e", build)
    assert len(built) == 2
    assert (folder / "pixels").read_bytes() == b"right"
