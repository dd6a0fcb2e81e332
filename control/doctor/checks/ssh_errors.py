"""SSH errors: their meaning and their fixes."""

from typing import Any

from control.doctor.checks.model import FAIL, Check

SSH = (
    (
        "identification has changed",
        "its host key has changed",
        "when it was set up anew: ssh-keygen -R {known}; when not, somebody answers for it",
    ),
    ("host key verification failed", "its host key is not known here", "ssh {login}, compare the key, answer yes"),
    ("unprotected private key", "the private key can be read by others, so ssh refuses it", "chmod 600 KEYFILE (ssh names it)"),
    ("permission denied", "it refuses the key", "ssh-copy-id {login}, or set ansible_user and ansible_ssh_private_key_file"),
    ("could not resolve hostname", "its name is unknown here", "set ansible_host to its address"),
    (
        "connection refused",
        "no SSH server answers",
        "on {host}: sudo apt-get install openssh-server && sudo systemctl enable --now ssh; or set ansible_port, if it has another",
    ),
    ("timed out", "it is down, or a firewall is in between", "switch it on and look: ping -c 3 {address}"),
    ("no route to host", "it is down, or in another network", "switch it on and look: ping -c 3 {address}"),
    ("network is unreachable", "this machine has no way to it", "ip route get {address}"),
    ("no space left", "its disk is full", "ssh {login} df -h, and remove what is not needed"),
    ("sudo: a password is required", "sudo asks for a password", "give --ask-become-pass, or allow {user} sudo without one"),
    ("missing sudo password", "sudo asks for a password", "give --ask-become-pass, or allow {user} sudo without one"),
    (
        "incorrect sudo password",
        "sudo does not take the password",
        "give the right one with --ask-become-pass, or allow {user} sudo without one",
    ),
    ("not in the sudoers file", "its user may not use sudo", "as root on {host}: usermod -aG sudo {user}"),
    ("python: not found", "it has no Python for Ansible", "ssh {login} sudo apt-get install python3"),
    ("python3: not found", "it has no Python for Ansible", "ssh {login} sudo apt-get install python3"),
    ("connection reset", "it hangs up during the greeting", "on {host}: sudo journalctl -u ssh -n 20"),
    ("connection closed", "it hangs up during the greeting", "on {host}: sudo journalctl -u ssh -n 20"),
)


def ssh(host: dict[str, Any], message: str) -> Check:
    """The meaning and the fix of an SSH error (also of the first task over SSH)."""
    address, user = str(host.get("ssh") or host["address"]), host.get("user")
    number = int(host.get("ssh_port") or 22)
    login = f"{user}@{address}" if user else address
    words = {
        "host": host["name"],
        "address": address,
        "user": user or "the user",
        "login": login if number == 22 else f"-p {number} {login}",
        "known": address if number == 22 else f"'[{address}]:{number}'",
    }
    text = message.lower()
    for pattern, value, fix in SSH:
        if pattern in text:
            return Check(FAIL, host["name"], "ssh", value, fix=fix.format(**words))
    last = ([line.strip() for line in message.splitlines() if line.strip()] or ["no reason given"])[-1]
    return Check(FAIL, host["name"], "ssh", f"can't be reached: {last[:160]}", fix=f"ssh -v {words['login']}")
