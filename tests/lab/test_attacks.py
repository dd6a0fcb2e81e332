"""Attacks on a real cluster, each of which worked once. Every test is self-contained: it puts right what it breaks."""

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.lab.conftest import NODES, SHORT, Lab
from tests.lab.conftest import WORKER_ROOT as ROOT
from tests.project import EXHAUSTIVE

# --- an ordinary user of a member: neither root nor the one who trains

SERVER, CLIENT = 1, NODES
"""The second one only mounts the volume where there are more hosts than keep it: three."""
USER = "mallory"

WRITE = """
import ctypes, os, sys
# Writes a file as root through GlusterFS's own library, which lets a program say who it is.
server, volfile, path = sys.argv[1:]
api = ctypes.CDLL("libgfapi.so.0", use_errno=True)
api.glfs_new.restype = api.glfs_creat.restype = ctypes.c_void_p
api.glfs_write.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
volume = ctypes.c_void_p(api.glfs_new(b"lockstep"))
if volfile:
    api.glfs_set_volfile(volume, volfile.encode())
else:
    api.glfs_set_volfile_server(volume, b"tcp", server.encode(), 24007)
api.glfs_set_logging(volume, b"/dev/null", 7)
if api.glfs_init(volume) != 0:
    sys.exit("refused: " + os.strerror(ctypes.get_errno()))
api.glfs_setfsuid(0), api.glfs_setfsgid(0)
file = api.glfs_creat(volume, path.encode(), os.O_WRONLY | os.O_CREAT, 0o644)
if not file:
    sys.exit("refused: " + os.strerror(ctypes.get_errno()))
print("wrote", api.glfs_write(file, b"planted", 7, 0), "bytes")
"""

CONNECT = """
import socket, sys
for place in sys.argv[1:]:
    host, port = place.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), 3).close()
        print(place, "open")
    except OSError as error:
        print(place, error)
"""

ASK = """
import os, socket, ssl, struct, sys
# GlusterFS answers the empty procedure of its handshake to whoever it listens to: without TLS, and with TLS but no certificate.
host, port, way = sys.argv[1:]
call = struct.pack("!10I", 7, 0, 2, 14398633, 2, 0, 0, 0, 0, 0)
sock = socket.create_connection((host, int(port)), 5)
sock.settimeout(10)
try:
    if way == "tls":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        sock = context.wrap_socket(sock)
    sock.sendall(struct.pack("!I", 0x80000000 | len(call)) + call)
    print("answered" if sock.recv(64) else "hung up")
except OSError as error:
    print("hung up:", error)
"""

BRICK = """volume brick
  type protocol/client
  option remote-host {host}
  option remote-port {port}
  option remote-subvolume {folder}
  option transport-type socket
  option transport.socket.ssl-enabled {tls}
  option transport.socket.ssl-own-cert {home}/own.pem
  option transport.socket.ssl-private-key {home}/own.key
  option transport.socket.ssl-ca-list /etc/ssl/glusterfs.ca
end-volume
"""


@pytest.fixture
def members(cluster) -> Iterator[Lab]:
    """The cluster, with an ordinary user on two hosts."""
    with cluster.user(SERVER, USER), cluster.user(CLIENT, USER):
        yield cluster


def python(lab: Lab, node: int, script: str, *arguments: str, user: str = USER) -> str:
    """What a Python script prints, errors included, run by a user of a node."""
    words = " ".join(shlex.quote(word) for word in ("-c", script, *arguments))
    return lab.on(node, f"cd /; runuser -u {user} -- timeout 60 python3 {words} 2>&1", check=False)


@contextmanager
def without_firewall(lab: Lab, node: int) -> Iterator[None]:
    """A node whose table of rules is gone, as after `nft flush ruleset`."""
    lab.on(node, "nft delete table inet lockstep")
    try:
        yield
    finally:
        lab.on(node, "systemctl restart lockstep-firewall")


def brick_port(lab: Lab, node: int) -> str:
    """Port of a node's brick."""
    return re.search(r":(49\d+) .*glusterfsd", lab.on(node, "ss -ltnp")).group(1)


def refused_write(lab: Lab, node: int, *arguments: str) -> None:
    """An attempt to write into the volume that must fail, and leave nothing."""
    assert "refused" in (output := python(lab, node, WRITE, *arguments)), output
    assert "planted" not in lab.on(node, "ls -A /mnt/lockstep")


@pytest.mark.parametrize("node", [SERVER, CLIENT])
def test_an_ordinary_user_of_a_member_cant_write_the_volume_as_root(members, node):
    places = [members.address(SERVER), *(["127.0.0.1"] if node == SERVER else [])]
    for place in places:
        refused_write(members, node, place, "", "/planted")
    with without_firewall(members, node):
        for place in places:
            refused_write(members, node, place, "", "/planted")
    # The attack is a real one: who has the key, and that is root alone, can do it.
    assert python(members, node, WRITE, places[0], "", "/planted", user="root") == "wrote 7 bytes\n"
    members.on(node, "rm /mnt/lockstep/planted")
    assert "Permission denied" in members.on(node, f"runuser -u {USER} -- cat /etc/ssl/glusterfs.key 2>&1", check=False)


@pytest.mark.parametrize("tls", ["on", "off"])
def test_a_brick_takes_no_certificate_but_a_members(members, tls):
    home = f"/home/{USER}"
    own = f"openssl req -x509 -newkey rsa:2048 -nodes -days 9 -subj /CN=node1 -keyout {home}/own.key -out {home}/own.pem"
    members.on(CLIENT, f"runuser -u {USER} -- {own} 2>&1")
    place = {"host": members.address(SERVER), "port": brick_port(members, SERVER), "folder": "/srv/lockstep-brick/dfs"}
    members.on(CLIENT, f"cat > {home}/brick.vol <<'EOF'\n{BRICK.format(**place, tls=tls, home=home)}EOF")
    with without_firewall(members, CLIENT):
        refused_write(members, CLIENT, "", f"{home}/brick.vol", "/planted")


def test_gluster_answers_nobody_without_a_certificate(members):
    with without_firewall(members, CLIENT):
        for port in ("24007", brick_port(members, SERVER)):
            for way in ("plain", "tls"):
                answer = python(members, CLIENT, ASK, members.address(SERVER), port, way)
                assert answer.startswith("hung up"), (port, way, answer)
    with without_firewall(members, SERVER):
        asked = f"runuser -u {USER} -- timeout 30 gluster --mode=script --remote-host={members.address(2)} volume info 2>&1"
        assert "Volume Name" not in members.on(SERVER, asked, check=False)


def test_an_ordinary_user_of_a_member_reaches_no_port_of_the_cluster(members):
    ports = {node: ["12345", "13345", "24007", brick_port(members, node)] for node in (SERVER, 2)}
    places = [f"127.0.0.1:{port}" for port in ports[SERVER]]
    places += [f"{members.address(node)}:{port}" for node in (SERVER, 2) for port in ports[node]]
    with members.listening(SERVER, 12345, 13345, user="lockstep"), members.listening(2, 12345, 13345, user="lockstep"):
        refused = python(members, SERVER, CONNECT, *places).splitlines()
        assert len(refused) == len(places)
        assert all("Connection refused" in line for line in refused), refused
        for user in ("lockstep", "root"):
            opened = python(members, SERVER, CONNECT, *places, user=user).splitlines()
            assert all(line.endswith("open") for line in opened), (user, opened)
    assert re.search(r"counter packets [1-9]\d* .* reject", members.on(SERVER, "nft list chain inet lockstep other_users"))


# --- strangers at the ports on which workers wait for each other

HOLDER = """
import os, socket, sys, time
places = [(host, int(port)) for host in sys.argv[2].split(",") for port in sys.argv[3].split(",")]
held, count = {}, 0
while True:
    for place in places:
        mine = held.setdefault(place, [])
        for one in list(mine):
            try:
                if one.recv(4096) == b"":
                    raise ConnectionResetError
            except BlockingIOError:
                pass
            except OSError:
                mine.remove(one)
        while len(mine) < int(sys.argv[1]):
            try:
                mine.append(socket.create_connection(place, 1))
            except OSError:
                break
            mine[-1].setblocking(False)
            count += 1
            open("/tmp/.held", "w").write(str(count))
            os.replace("/tmp/.held", "/tmp/held")
    time.sleep(0.02)
"""


@EXHAUSTIVE("trainer/network/handshake.py", "trainer/network/sockets_all_reduce.py", "roles/firewall")
def test_idle_connections_to_the_direct_ports_do_not_keep_a_training_from_its_start(cluster):
    """Eight a port, renewed as soon as they are closed, by the user that trains, on a node that does not: the firewall lets it through."""
    attacker, workers = NODES, NODES - 2
    targets = ",".join(cluster.address(node) for node in range(1, workers + 1))
    cluster.on(attacker, f"cat > /tmp/hold.py <<'END'\n{HOLDER}END\nrm -f /tmp/held")
    start = f"setsid runuser -u lockstep -- python3 /tmp/hold.py 8 {targets} 13345 > /tmp/hold.log 2>&1 & echo $!"
    pid = cluster.on(attacker, start).strip()
    try:
        done = cluster.play("train", "run=besieged", f"workers={workers}", "config=lecture_cnn", "quick=true")
        held = int(cluster.on(attacker, "cat /tmp/held"))
    finally:
        cluster.on(attacker, f"kill -- -{pid} 2>/dev/null; kill {pid} 2>/dev/null; true")
    assert "besieged: SUCCEEDED" in done.stdout, done.stdout
    print(f"{held} connections were held")
    assert held >= 8 * workers


# --- somebody else writes the folder that all hosts read

CHANGES = """
import json, pathlib, shutil, sys, zipfile
code, data = pathlib.Path("/mnt/lockstep/code", sys.argv[1]), pathlib.Path("/mnt/lockstep/datasets", sys.argv[2])
if "zip" in sys.argv[3:]:
    with zipfile.ZipFile(code, "a") as archive:
        archive.writestr("trainer/__init__.py", "open('/tmp/harm', 'a').write('harm')")
if "labels" in sys.argv[3:]:
    manifest = json.loads((data / "manifest.json").read_text())
    manifest["train"]["labels"] = [0] * len(manifest["train"]["labels"])
    (data / "manifest.json").write_text(json.dumps(manifest))
if "pack" in sys.argv[3:]:
    pack = data / "data-00000.pack"
    changed = bytearray(pack.read_bytes())
    changed[: len(changed) // 2] = bytes(len(changed) // 2)
    pack.write_bytes(changed)
"""


def forget_published_copies(cluster: Lab) -> None:
    """As on hosts that never had this code, or this dataset: what a host keeps of them on its own disk is not looked for again."""
    for node in range(1, NODES + 1):
        cluster.on(node, f"rm -rf {ROOT}/caches/code {ROOT}/caches/*-28x28x1 /tmp/harm")


def shared_code_unharmed(cluster: Lab) -> bool:
    return not any(cluster.on(node, "cat /tmp/harm 2>/dev/null", check=False) for node in range(1, NODES + 1))


def test_code_and_data_that_were_changed_between_two_commands_are_sent_anew(cluster, first):
    record = json.loads((cluster.run("first") / "cluster.json").read_text())
    names = [record["code"], record["dataset"]["folder_name"], "zip", "labels", "pack"]
    forget_published_copies(cluster)
    cluster.on(3, shlex.join(["python3", "-c", CHANGES, *names]))
    done = cluster.play("train", "run=fixed", *SHORT)
    for name in (record["code"], "manifest.json", "data-00000.pack"):
        assert f"/{name}" in done.stdout, done.stdout
    assert "contents differ from what was published; sent again" in done.stdout
    assert cluster.summary("fixed")["weights_sha256"] == first
    assert shared_code_unharmed(cluster)
