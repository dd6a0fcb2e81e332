"""The parts of a report: contents of files, sentences, pages, the zip. `control.report.report` combines them."""
