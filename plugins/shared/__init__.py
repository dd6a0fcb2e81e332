"""Code shared by several action plugins."""
