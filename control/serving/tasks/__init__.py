"""What playbooks call."""
