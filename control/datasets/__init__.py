"""Datasets: sources, publishing, conversion. Sources register themselves."""

from control.datasets.sources import fashion_mnist, folder, idx, python_function, tables, tfrecords  # noqa: F401
