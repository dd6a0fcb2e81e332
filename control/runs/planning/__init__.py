"""The plan of a run, made before any host is touched."""
