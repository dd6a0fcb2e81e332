"""Results of a benchmark's passes: a table, a sentence, a picture, files on the control node."""

from typing import Any

from benchmarks.analysis import benchmark, common, inference, loader
from control import project, text
from control.task import Task


class Conclude(Task):
    """Writes `benchmarks/results/<name>/`."""

    def act(self) -> dict[str, Any]:
        """Evaluate, write, show."""
        self.bench, self.timed = self.arguments["bench"], self.arguments["timed"]
        self.folder = benchmark.RESULTS / self.bench["name"]
        self.host = common.machine(self.arguments["host"], self.arguments["facts"])
        self.warning = common.disturbed(self.host, self.timed["rows"])
        table, sentences = getattr(self, f"_of_{self.bench['kind']}")()
        where = project.relative(self.folder)
        files = [("results", f"{where}/results.csv, {where}/summary.json"), ("picture", f"{where}/{self.bench['kind']}.png")]
        sentences = f"{sentences}\n{self.warning}".rstrip()
        parts = [common.about(self.host), table, sentences, text.fields(files), text.next_commands(self._next())]
        return {"changed": True, "show_last": "\n\n".join(parts)}

    def _of_loader(self) -> tuple[str, str]:
        timed, settings = self.timed, self.bench["settings"]
        found_rows = loader.rows(timed["rows"])
        sentences = [loader.answer(found_rows, timed["cores"]), loader.cached(timed["decoded_mb"], self.bench["cache_limit_mb"])]
        self._write(
            {
                "dataset": self.bench["dataset"],
                "made_up": self.bench["made"],
                "images": timed["images"],
                "mean_file_bytes": round(timed["bytes"] / timed["images"]),
                "image_size": settings["image_size"],
                "passes": settings["passes"],
                "results": loader.as_dicts(found_rows),
                "answer": " ".join(sentences),
            }
        )
        loader.draw(found_rows, timed["images"], common.about(self.host), self.folder / "loader.png")
        return loader.shown(found_rows), "\n".join(sentences)

    def _of_inference(self) -> tuple[str, str]:
        timed, settings = self.timed, self.bench["settings"]
        every = inference.cells(timed["rows"])
        asked = [cell for cell in every if cell.batch in settings["batches"]]
        processor = inference.Processor(timed["kind"], self.host["cpus"], timed["threads"])
        sentence = inference.answer(every, settings["batches"], timed["smallest"], processor)
        self._write(
            {
                "model": timed["model"],
                "parameters": timed["parameters"],
                "of": self.bench["of"],
                "devices": timed["kind"],
                "threads": timed["threads"],
                "passes": settings["passes"],
                "smallest_batch": timed["smallest"],
                "results": inference.as_dicts(every),
                "answer": sentence,
            }
        )
        inference.draw(asked, timed["model"], common.about(self.host), self.folder / "inference.png")
        return inference.shown(asked), sentence

    def _write(self, more: dict[str, Any]) -> None:
        record = {"benchmark": self.bench["kind"], "date": self.bench["date"], "command": self.bench["command"], "host": self.host}
        common.write(
            self.folder, self.timed["rows"], {**record, "trainer": self.bench["code_name"], **more, "warning": self.warning or None}
        )

    def _next(self) -> list[tuple[str, str]]:
        if self.bench["kind"] == "inference":
            deeper = benchmark.command("benchmarks/inference.yml", {"config": "deep_cnn"})
            return [("another model", deeper), ("once more", self.bench["command"])]
        enough = loader.enough(loader.rows(self.timed["rows"])).loaders
        train = benchmark.command("train.yml", {"dataset": "FOLDER", "set": f"data.loaders={enough}"})
        return [("train with as many", train), ("once more", self.bench["command"])]
