"""The doctor's lines: what SSH's errors mean."""

import pytest

from control.doctor.checks.ssh_errors import ssh
from control.remote import answers
from tests.unit.doctor_samples import doctor
from tests.unit.refusals import refusal

SSH = "Failed to connect to the host via ssh: "
CHANGED = f"""{SSH}@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Offending ECDSA key in /home/me/.ssh/known_hosts:3
Host key verification failed."""


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (
            f"{SSH}ssh: connect to host 10.0.0.2 port 22: Connection timed out",
            "it is down, or a firewall is in between. Fix: switch it on and look: ping -c 3 10.0.0.2",
        ),
        (
            f"{SSH}ssh: connect to host 10.0.0.2 port 22: No route to host",
            "it is down, or in another network. Fix: switch it on and look: ping -c 3 10.0.0.2",
        ),
        (
            f"{SSH}ssh: connect to host 10.0.0.2 port 22: Connection refused",
            "no SSH server answers. Fix: on node02: sudo apt-get install openssh-server && sudo systemctl enable --now ssh; or set "
            "ansible_port, if it has another",
        ),
        (
            f"{SSH}pi@10.0.0.2: Permission denied (publickey,password).",
            "it refuses the key. Fix: ssh-copy-id pi@10.0.0.2, or set ansible_user and ansible_ssh_private_key_file",
        ),
        (
            CHANGED,
            "its host key has changed. Fix: if it was set up anew: ssh-keygen -R 10.0.0.2; if not, another machine answers in its place",
        ),
        (f"{SSH}Host key verification failed.", "its host key is not known here. Fix: ssh pi@10.0.0.2, compare the key, answer yes"),
        (
            "ssh: Could not resolve hostname node02: Name or service not known",
            "its name does not resolve. Fix: set ansible_host to its address",
        ),
        ("Connection reset by peer", "it closes the connection while ssh connects. Fix: on node02: sudo journalctl -u ssh -n 20"),
        ("pi is not in the sudoers file", "its user may not use sudo. Fix: as root on node02: usermod -aG sudo pi"),
        (
            "Incorrect sudo password",
            "sudo does not take the password. Fix: give the right one with --ask-become-pass, or allow pi sudo without one",
        ),
        ("sudo: a password is required", "sudo asks for a password. Fix: give --ask-become-pass, or allow pi sudo without one"),
        (
            "mkdir: cannot create directory: No space left on device",
            "its disk is full. Fix: ssh pi@10.0.0.2 df -h, and remove what is not needed",
        ),
        ("first\nkex: something new\n", "can't be reached: kex: something new. Fix: ssh -v pi@10.0.0.2"),
        ("", "can't be reached: no reason given. Fix: ssh -v pi@10.0.0.2"),
    ],
)
def test_errors_of_ssh(message, line):
    assert doctor(lambda facts: facts.update(node02={"unreachable": message})) == [f"[FAIL] node02  ssh  {line}"]


def test_fixes_name_port_and_user_if_known():
    host = {"name": "n", "address": "10.0.0.9", "ssh": "192.0.2.9", "ssh_port": 2222, "port": 12345}
    assert ssh(host, CHANGED).fix.startswith("if it was set up anew: ssh-keygen -R '[192.0.2.9]:2222';")
    assert ssh(host, "Host key verification failed.").fix == "ssh -p 2222 192.0.2.9, compare the key, answer yes"
    assert doctor(lambda facts: facts.pop("node04")) == ["[FAIL] node04  ssh  can't be reached: was not probed. Fix: ssh -v pi@10.0.0.4"]


def test_impossible_answer_of_a_host_chooses_no_fix():
    actual = ssh(
        {"name": "pi3", "address": "10.0.0.3"},
        refusal(answers.believed, "host_probe", '{"facts": "REMOTE HOST IDENTIFICATION HAS CHANGED, permission denied"}'),
    )
    assert (actual.level, actual.value) == ("FAIL", "it answers what the probe never does")
    assert actual.fix == "see who controls that host, or leave it out"
