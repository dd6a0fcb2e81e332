"""Write a table's columns in the files that `trainer.data.columns` maps: appended batch by batch, never whole in memory."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from trainer.common.files import sync
from trainer.data.columns import part_name, rows_name
from trainer.data.spec import STRING, Leaf, Spec


class GrowingFile:
    """A file in NumPy's format that grows; its header is right once it is closed."""

    def __init__(self, path: Path, dtype: np.dtype[Any], inner: tuple[int, ...] = ()):
        self._path, self._dtype, self._inner = path, dtype, inner
        self._stream: BinaryIO = path.open("wb")
        self.count = 0
        self._header()

    def append(self, values: np.ndarray) -> None:
        """Add `[n, *inner]`."""
        self._stream.write(np.ascontiguousarray(values, self._dtype).data if len(values) else b"")
        self.count += len(values)

    def close(self) -> None:
        """Write the header and flush to the disk."""
        self._stream.seek(0)
        self._header()
        self._stream.close()
        sync(self._path)

    def _header(self) -> None:
        # NumPy pads the header so that the first dimension may grow in place.
        description = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": description, "fortran_order": False, "shape": (self.count, *self._inner)}
        np.lib.format.write_array_header_2_0(self._stream, header)


class Writer:
    """Writes one split, as a context manager: the files are complete when it ends without an error."""

    def __init__(self, folder: Path, spec: Spec, split: str):
        self.spec, self.count = spec, 0
        self._dtype = spec.row_dtype()
        self._rows = GrowingFile(folder / rows_name(split), self._dtype) if self._dtype.names else None
        self._files: dict[int, dict[str, GrowingFile]] = {}
        for number, leaf in enumerate(spec.leaves):
            kinds = {"values": leaf.stored_dtype if leaf.dtype != STRING else None, "text": np.dtype("u1")}
            for part in leaf.files:
                inner = (len(leaf.shape),) if part == "shapes" else ()
                file = GrowingFile(folder / part_name(split, number, part), kinds.get(part) or np.dtype("<i8"), inner)
                self._files.setdefault(number, {})[part] = file
            for part in ("starts", "ends"):
                if part in self._files.get(number, {}):
                    self._files[number][part].append(np.zeros(1, np.int64))
        self._elements = dict.fromkeys(self._files, 0)
        self._bytes = dict.fromkeys(self._files, 0)

    def append(self, values: Sequence[Any]) -> None:
        """Add examples.

        Args:
            values: per leaf of the spec, in order, n examples. Of fixed shape: an array `[n, ...]`, of strings an array of objects
                (str or bytes). If the shape varies: n arrays, or lists of strings.
        """
        count = len(values[0])
        if self._rows is not None:
            rows = np.empty(count, self._dtype)
            for name in self._dtype.names or ():
                rows[name] = values[int(name)]
            self._rows.append(rows)
        for number in self._files:
            if self.spec.leaves[number].varies:
                self._append_ragged(number, self.spec.leaves[number], values[number])
            else:
                self._append_elements(number, np.asarray(values[number], object).ravel())
        self.count += count

    def _append_ragged(self, number: int, leaf: Leaf, examples: Sequence[Any]) -> None:
        string = leaf.dtype == STRING
        arrays = [np.asarray(example, object if string else leaf.dtype) for example in examples]
        files = self._files[number]
        sizes = np.array([array.size for array in arrays], np.int64)
        files["starts"].append(self._elements[number] + np.cumsum(sizes))
        if "shapes" in files:
            files["shapes"].append(np.array([array.shape for array in arrays], np.int64).reshape(len(arrays), len(leaf.shape)))
        self._elements[number] += int(sizes.sum())
        if arrays:
            self._append_elements(number, np.concatenate([array.ravel() for array in arrays]))

    def _append_elements(self, number: int, elements: np.ndarray) -> None:
        files = self._files[number]
        if "values" in files:
            files["values"].append(elements)
            return
        encoded = [text.encode(errors="replace") if isinstance(text, str) else bytes(text) for text in elements]
        ends = self._bytes[number] + np.cumsum([len(text) for text in encoded], dtype=np.int64)
        self._bytes[number] += sum(map(len, encoded))
        files["ends"].append(ends)
        files["text"].append(np.frombuffer(b"".join(encoded), np.uint8))

    def __enter__(self) -> "Writer":
        """The writer itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Complete the files."""
        self.close()

    def close(self) -> None:
        """Complete the files."""
        for file in [*([self._rows] if self._rows else []), *(file for files in self._files.values() for file in files.values())]:
            file.close()
