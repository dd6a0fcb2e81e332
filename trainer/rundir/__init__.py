"""The files of a run directory: names, records, the best epoch, what happens when a disk is full."""
