"""A run's configuration: its keys, their defaults, reading them, the learning rate they give."""
