"""What a source lists of a dataset: names, labels, examples checked batch by batch, columns kept."""
