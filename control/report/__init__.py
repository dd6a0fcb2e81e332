"""The parts of a report: what the files say, sentences, pages, the zip. `control.report.report` puts them together."""
