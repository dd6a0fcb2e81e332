"""One host: claims, ports, tmux sessions, load. Standard library and Python 3.9 only: Ansible runs some of these files by themselves."""
