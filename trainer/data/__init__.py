"""Data on a node: a published dataset's manifest and packs, a cache, an exact partition, batches for the inner loop."""
