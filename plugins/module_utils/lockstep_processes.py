"""Processes of a host, and their start times. Standard library only."""

import os
import time


def running(chosen):
    """Ids of this host's own processes, not those in containers, whose command line satisfies `chosen`, a function of its words."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _own(entry) and chosen(words(entry))]


def _own(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except OSError:
        return False


def words(pid):
    """The command line of a process; one empty word if it is gone or hidden from us."""
    return _text(f"/proc/{pid}/cmdline").split("\0")


def older(pids, path):
    """Those processes that started before a file was written, and so do not know its content."""
    return [pid for pid in pids if os.path.exists(path) and _started(pid) < os.path.getmtime(path) - 0.1]


def _started(pid):
    """Seconds since 1970; for a process that has gone, late enough never to be older."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if not fields:
        return float("inf")
    return time.time() - float(_text("/proc/uptime").split()[0]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""
