"""The user's own files of a run: model, callbacks, dataset, `augment`, and the modules that they import."""

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from control.common import user_files
from control.report.facts import Run
from trainer.common.errors import ConfigError
from trainer.user_code.user_function import Function

FORBIDDEN = '<>:"|?*\\'
"""Characters that a file's name may not have on some machines."""


@dataclass(frozen=True)
class OwnFile:
    """A file of the user's."""

    text: str
    what: str
    """Purpose of the file, as in `model: build`."""


@dataclass(frozen=True)
class OwnFiles:
    """All own files of a run, by name relative to their folder."""

    folder: str
    """Folder of the files in the zip, with a trailing slash."""
    files: Mapping[str, OwnFile]
    dataset: str
    """The dataset's function in these files, as NAME:FUNCTION; empty if there is none."""
    missing: str
    """Reason why the dataset's file is missing; empty if it is included, or if there is none."""

    @classmethod
    def of(cls, run: Run, folder: str = "code/") -> "OwnFiles":
        """Collect a run's own files: from config.yml, as they were in training; the dataset's, which is not recorded, as it is now."""
        functions = dict(_recorded(run.config))
        described = {what: f"{what}: {function.name}" for what, function in functions.items()}
        missing = ""
        try:
            if own := _dataset(run.config):
                functions["dataset"] = own
                described["dataset"] = f"dataset: {own.name}, {_since(run, own)}"
        except (ConfigError, OSError) as error:
            missing = str(error)
        files, names = _named(functions, described)
        dataset = f"{names['dataset']}:{functions['dataset'].name}" if "dataset" in functions else ""
        return cls(folder, files, dataset, missing)


def _recorded(config: Mapping[str, Any]) -> Iterator[tuple[str, Function]]:
    """Yield the purpose and the function of each recorded file in a configuration."""
    sections = (("model", config), ("callbacks", config.get("train")), ("augment", config.get("data")))
    for what, section in sections:
        entry = section.get(what) if isinstance(section, Mapping) else None
        if isinstance(entry, Mapping) and all(isinstance(entry.get(key), str) for key in ("file", "function", "source")):
            yield what, Function.of({key: value for key, value in entry.items() if isinstance(value, str)})


def _dataset(config: Mapping[str, Any]) -> Function | None:
    """The dataset's function, from its file as it is now; ConfigError if the file is gone."""
    data = config.get("data") or {}
    return user_files.find("dataset", str(data["path"])) if data.get("source") == "own" else None


def _since(run: Run, function: Function) -> str:
    """Remark on a function's files that were written after the run began."""
    begun = datetime.datetime.fromisoformat(run.record.created_at).timestamp()
    path = Path(str(function.path))
    changed = any(one.stat().st_mtime > begun for one in (path, *(path.parent / name for name in function.modules)) if one.is_file())
    return "written after the run began, so perhaps not what it read" if changed else "as it was when the run began"


def _named(functions: Mapping[str, Function], described: Mapping[str, str]) -> tuple[dict[str, OwnFile], dict[str, str]]:
    """The files by name, and by function; if names clash with different files, a function's files get a separate folder."""
    files: dict[str, OwnFile] = {}
    names: dict[str, str] = {}
    for what, function in functions.items():
        texts = {_safe(function.file): function.source, **{_safe(name): text for name, text in function.modules.items()}}
        folder = "" if all(name not in files or files[name].text == text for name, text in texts.items()) else f"{what}/"
        names[what] = folder + _safe(function.file)
        for name, text in texts.items():
            own = described[what] if name == _safe(function.file) else ""
            before = files[folder + name].what if folder + name in files else ""
            files[folder + name] = OwnFile(text, "; ".join(filter(None, (before, own))))
    return {name: OwnFile(one.text, one.what or "a module that these import") for name, one in sorted(files.items())}, names


def _safe(name: str) -> str:
    """A similar relative path that stays in its folder and that every machine can write."""
    parts = (_safe_part(part) for part in PurePosixPath(name.replace("\\", "/")).parts)
    return "/".join(part for part in parts if part) or "_"


def _safe_part(part: str) -> str:
    kept = "".join("_" if one in FORBIDDEN or not one.isprintable() else one for one in part)
    return kept.strip("/").rstrip(". ") if kept.strip("./ ") else ""
