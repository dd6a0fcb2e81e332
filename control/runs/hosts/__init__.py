"""The hosts of a run: from the inventory to addresses, roles, ports and start commands."""
