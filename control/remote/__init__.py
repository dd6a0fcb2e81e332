"""Hosts over SSH: commands, uploads, tmux, the shared folder."""
