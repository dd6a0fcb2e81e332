"""Errors, files, clocks, text: what every other folder uses. Neither NumPy nor TensorFlow."""
