"""Benchmarks that are run by themselves: `.venv/bin/python benchmarks/scripts/NAME.py`."""
