"""Workers that Ansible does not start one by one: Slurm's, and those of a user's own script."""
