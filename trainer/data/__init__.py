"""Datasets: sources, a published manifest and pack, a cache on each node, an exact partition."""
