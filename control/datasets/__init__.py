"""Datasets: sources, publishing, conversion."""

from control.datasets import fashion_mnist, folder, idx, own, tables, tfrecords  # noqa: F401 - sources register themselves
