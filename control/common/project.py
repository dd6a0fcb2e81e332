"""Paths in the project on the control node."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "runs"
SWEEPS = ROOT / "sweeps"
EXPORTS = ROOT / "exports"
PRIVATE = ROOT / ".lockstep"
TRIALS = "trials"
"""Folder of a sweep's trials: `trials/<sweep>` below worker_root, which may be this very folder; `sweeps/<sweep>/trials` here."""


def runs_folder(run_kind: str) -> Path:
    """Folder of run directories on the control node: the user's runs, a sweep's trials, or a command's own."""
    kind, _, name = run_kind.partition("/")
    if kind == TRIALS:
        return SWEEPS / name / TRIALS
    return RUNS if run_kind == "runs" else PRIVATE / run_kind


def runs() -> list[str]:
    """Names of the user's own runs, launched or only planned, sorted."""
    return sorted(path.parent.name for path in RUNS.glob("*/config.yml"))


def sweeps() -> list[str]:
    """Names of the existing sweeps, the newest last."""
    return [path.parent.name for path in sorted(SWEEPS.glob("*/summary.json"), key=lambda path: path.stat().st_mtime)]


def relative(path: Path) -> str:
    """A path as a user in the project's folder would type it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def inside(path: str) -> str:
    """Absolute path of something in the project; of the project itself for ``."""
    return str(ROOT / path)
