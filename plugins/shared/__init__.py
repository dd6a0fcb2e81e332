"""Code that several action plugins share."""
