"""Names of existing runs."""

from pathlib import Path

from trainer.common.errors import ConfigError
from trainer.common.suggest import nearest
from trainer.host.claims import RUN_NAME


def check_run_name(name: str) -> None:
    """Refuse a run name that could leave its folder or reach a shell."""
    if not RUN_NAME.fullmatch(name):
        raise ConfigError(f"run={name}: a run name is 1 to 64 of A-Z a-z 0-9 . _ - and starts with a letter or digit")


def no_such_run(runs: Path, asked: str) -> str:
    """Message on a missing run: the nearest name, and the existing ones."""
    names = [path.parent.name for path in sorted(runs.glob("*/config.yml"), key=lambda path: path.stat().st_mtime)]
    return f"run={asked}: no such run{nearest(asked, names)}; there are: {', '.join(names) or 'none'}"


def latest_run(runs: Path, asked: str | None) -> Path:
    """Directory of the requested run, or of the newest run that started.

    Raises:
        ConfigError: there is no run, or none of that name (with the nearest name).
    """
    configs_by_age = sorted((path for path in runs.glob("*/config.yml")), key=lambda path: path.stat().st_mtime)
    names = [path.parent.name for path in configs_by_age]
    if asked is not None:
        check_run_name(asked)
        if asked not in names:
            raise ConfigError(no_such_run(runs, asked))
        return runs / asked
    started = [name for name in names if (runs / name / "cluster.json").is_file()]
    if not started:
        raise ConfigError("there is no run yet; start one with: ansible-playbook train.yml")
    return runs / started[-1]
