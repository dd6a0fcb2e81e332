"""SSH errors: their meaning and their fixes."""

from typing import Any

from control.doctor.checks.model import FAIL, Check
from control.remote import answers

START = "on {host}: sudo apt-get install openssh-server && sudo systemctl enable --now ssh"
PING = "switch it on and look: ping -c 3 {address}"
NOPASSWD = "or allow {user} sudo without one"
SSH = {
    # This comes first, because the rest of such a message is the host's own text.
    (answers.SUSPECT,): ("it answers what the probe never does", f"{answers.SUSPECT}, or leave it out"),
    ("identification has changed",): (
        "its host key has changed",
        "if it was set up anew: ssh-keygen -R {known}; if not, another machine answers in its place",
    ),
    ("host key verification failed",): ("its host key is not known here", "ssh {login}, compare the key, answer yes"),
    ("unprotected private key",): ("the private key can be read by others, so ssh refuses it", "chmod 600 KEYFILE (ssh names it)"),
    ("permission denied",): ("it refuses the key", "ssh-copy-id {login}, or set ansible_user and ansible_ssh_private_key_file"),
    ("could not resolve hostname",): ("its name does not resolve", "set ansible_host to its address"),
    ("connection refused",): ("no SSH server answers", START + "; or set ansible_port, if it has another"),
    ("timed out",): ("it is down, or a firewall is in between", PING),
    ("no route to host",): ("it is down, or in another network", PING),
    ("network is unreachable",): ("this machine has no route to it", "ip route get {address}"),
    ("no space left",): ("its disk is full", "ssh {login} df -h, and remove what is not needed"),
    ("sudo: a password is required", "missing sudo password"): ("sudo asks for a password", "give --ask-become-pass, " + NOPASSWD),
    ("incorrect sudo password",): ("sudo does not take the password", "give the right one with --ask-become-pass, " + NOPASSWD),
    ("not in the sudoers file",): ("its user may not use sudo", "as root on {host}: usermod -aG sudo {user}"),
    ("python: not found", "python3: not found"): ("it has no Python for Ansible", "ssh {login} sudo apt-get install python3"),
    ("connection reset", "connection closed"): ("it closes the connection while ssh connects", "on {host}: sudo journalctl -u ssh -n 20"),
}
"""Parts of an error in lower case: its meaning and its fix."""


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
    for patterns, (value, fix) in SSH.items():
        if any(pattern in text for pattern in patterns):
            return Check(FAIL, host["name"], "ssh", value, fix=fix.format(**words))
    last = ([line.strip() for line in message.splitlines() if line.strip()] or ["no reason given"])[-1]
    return Check(FAIL, host["name"], "ssh", f"can't be reached: {last[:160]}", fix=f"ssh -v {words['login']}")
