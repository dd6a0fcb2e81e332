"""Dataset sources, one file each."""
