"""The parts of a report: what the files say, sentences, pages, the zip. `trainer.analysis.report` puts them together."""
