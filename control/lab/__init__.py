"""The lab: SSH hosts in containers on this machine."""
