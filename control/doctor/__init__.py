"""The doctor: checks of hosts, prediction of speed."""
