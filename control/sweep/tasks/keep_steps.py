"""Keep each host's own step, timed before the trials: the sweep's model starts from it."""

from pathlib import Path
from typing import Any

from control.campaign import SUMMARY
from control.task import Task
from trainer.files import read_json, write_json


class KeepSteps(Task):
    """Writes them to the sweep's summary.json."""

    def act(self) -> dict[str, Any]:
        """Add hosts that were timed now to those of earlier commands."""
        path = Path(self.arguments["sweep"]["folder"]) / SUMMARY
        record = dict(read_json(path))
        write_json(path, {**record, "timed": {**record.get("timed", {}), **self.arguments["timed"]}})
        return {}
