"""Project paths, the command line, configurations, text and pictures: what every other folder uses."""
