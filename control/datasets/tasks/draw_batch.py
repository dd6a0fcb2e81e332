"""Draw one batch of a published dataset on the control node."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from control import project
from control.datasets import batch_picture
from control.remote import trainer_process
from control.task import Task


class DrawBatch(Task):
    """Writes `pictures/<dataset>-<configuration>.png`."""

    def act(self) -> dict[str, Any]:
        """Have the trainer make the batch, then draw it."""
        plan, published, wanted = (self.arguments[key] for key in ("plan", "published", "wanted"))
        name = f"{plan['dataset']['name']}-{Path(plan['config_name']).stem}"
        path = project.ROOT / "pictures" / f"{name}.png"
        with tempfile.TemporaryDirectory() as scratch:
            config, out = Path(scratch) / "config.yml", Path(scratch) / "batch.npz"
            config.write_text(plan["config_yaml"], encoding="utf-8")
            data = ["--packs", published["folder"], "--manifest", published["manifest"]]
            argv = ["batch", "--config", str(config), *data, "--out", str(out)]
            trainer_process.run([*argv, "--images", str(wanted["images"]), "--number", str(wanted["step"] - 1)], "making the batch")
            with np.load(out) as batch:
                title = f"{plan['dataset']['name']}, step {wanted['step']}"
                batch_picture.draw(path, title, batch["original"], batch["seen"], batch["labels"], batch["classes"].tolist())
                count = len(batch["labels"])
        shown = f"{count} images of step {wanted['step']}, original and as training sees them\n  picture  {project.relative(path)}"
        return {"changed": True, "show_last": shown}
