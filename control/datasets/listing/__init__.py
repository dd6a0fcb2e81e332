"""A source's listing of a dataset: names, labels, examples checked batch by batch, columns kept."""
