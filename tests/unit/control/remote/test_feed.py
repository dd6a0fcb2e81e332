"""A worker's news over one connection: what changes comes at once, once and whole, and the program on the host ends with the connection."""

import ast
import json
import os
import subprocess
import zlib

import pytest

from control.remote import follow, follow_program
from control.remote.follow import Feed, FollowingFailed, HostUnreachable
from tests.read_only import read_only
from tests.unit import hosts

WAIT = 10.0
"""Seconds within which a host answers."""


@pytest.fixture
def followed(tmp_path):
    """A feed of `tmp_path/metrics.jsonl`."""
    reading = Feed(hosts.action(), str(tmp_path), "s", "metrics.jsonl", 1000)
    yield reading
    reading.close()


@pytest.fixture
def alive(tmp_path, monkeypatch):
    """The process of the worker's session."""
    process = hosts.session(tmp_path, monkeypatch)
    yield process
    process.kill()
    process.wait()


def append(folder, text):
    """Append to the followed file."""
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write(text)


def programs():
    """Processes of the host's program that this process has started, by their command lines."""
    children = subprocess.run(["ps", "-ww", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=True)
    return [line for line in children.stdout.splitlines() if "zlib.decompress" in line]


def test_a_change_comes_at_once_and_once(followed, tmp_path, alive):
    line = followed.next(WAIT, 0.0)
    assert (line.news, line.alive, line.exit, line.more) == ("", True, "", False)
    append(tmp_path, "one\ntw")
    assert followed.next(WAIT, 0.0).news == "one\n"
    append(tmp_path, "o ü\n")
    line = followed.next(WAIT, 0.0)
    assert (line.begin, line.news) == (4, "two ü\n")
    (tmp_path / "exit.json").write_text("{}")
    assert followed.next(WAIT, 0.0).exit == "{}"
    alive.kill()
    alive.wait()
    assert not followed.next(WAIT, 0.0).alive


def test_one_program_serves_all_news_and_ends_with_the_connection(followed, tmp_path, alive):
    followed.next(WAIT, 0.0)
    first = programs()
    append(tmp_path, "one\n")
    followed.next(WAIT, 0.0)
    assert programs() == first
    assert len(first) == 1
    followed.close()
    assert programs() == []


def told(folder, capsys, every, happens=None, seconds=12.0):
    """What the program on a host prints within some seconds: when, the news and the worker's end; `happens`: what to call, by second."""
    now, lines, happens = 0.0, [], dict(happens or {})

    def left(pause):
        nonlocal now
        lines.extend((now, line["news"], line["exit"]) for line in map(json.loads, capsys.readouterr().out.splitlines()))
        now += pause
        for second in [one for one in happens if one <= now]:
            happens.pop(second)()
        return now > seconds

    follow_program.follow(follow_program.Feed(str(folder), "s", "", "metrics.jsonl", 0, 1000), every, left, lambda: now)
    return lines


def test_links_in_a_runs_folder_lead_nowhere(tmp_path, alive, capsys):
    """Otherwise anyone who can write there could expose any file of the host to those who watch the run."""
    own = tmp_path / "own"
    own.mkdir()
    append(tmp_path, "others' lines\n")
    for name in ("metrics.jsonl", "exit.json"):
        (own / name).symlink_to(tmp_path / "metrics.jsonl")
    assert told(own, capsys, 60.0, seconds=0.5) == [(0.0, "", "")]


def test_a_host_is_heard_of_every_five_seconds(tmp_path, alive, capsys):
    assert told(tmp_path, capsys, 60.0) == [(0.0, "", ""), (5.0, "", ""), (10.0, "", "")]


def test_a_change_is_told_once(tmp_path, alive, capsys):
    lines = told(tmp_path, capsys, 0.0, {1.0: lambda: append(tmp_path, "one\n")})
    assert lines == [(0.0, "", ""), (1.0, "one\n", ""), (6.0, "", ""), (11.0, "", "")]


def test_news_of_training_are_gathered(tmp_path, alive, capsys):
    """Its end is not: it is told at once."""
    append(tmp_path, '{"kind": "steps"}\n')
    happens = {
        1.0: lambda: append(tmp_path, "a\n"),
        2.0: lambda: append(tmp_path, "b\n"),
        6.0: lambda: append(tmp_path, "c\n"),
        7.0: lambda: (tmp_path / "exit.json").write_text("{}"),
    }
    lines = told(tmp_path, capsys, 4.0, happens)
    assert lines == [(0.0, '{"kind": "steps"}\n', ""), (4.0, "a\nb\n", ""), (7.0, "c\n", "{}"), (12.0, "", "{}")]


def test_the_program_is_told_how_often(followed, monkeypatch):
    seen = []
    monkeypatch.setattr(follow_program, "follow", lambda feed, every: seen.append((feed.name, every)))
    _, sent = followed._program(60.0)
    exec(zlib.decompress(sent).decode().rpartition("\n\n")[2], {"main": follow_program.main, "json": json})
    assert seen == [("metrics.jsonl", 60.0)]


def test_more_than_a_line_takes_comes_in_several(followed, tmp_path, alive):
    lines = [f"line {number}\n" for number in range(500)]
    append(tmp_path, "".join(lines))
    news, more = "", True
    while more:
        line = followed.next(WAIT, 0.0)
        news, more = news + line.news, line.more
    assert news == "".join(lines)


def test_a_replaced_file_is_read_from_its_beginning(followed, tmp_path, alive):
    append(tmp_path, "a longer line\n")
    followed.next(WAIT, 0.0)
    (tmp_path / "metrics.jsonl").write_text("new\n")
    line = followed.next(WAIT, 0.0)
    assert (line.begin, line.news) == (0, "new\n")


def test_a_connection_that_broke_goes_on_where_it_was(followed, tmp_path, alive):
    append(tmp_path, "zwölf\n")
    followed.next(WAIT, 0.0)
    followed._stream._process.kill()
    followed._stream._process.wait()
    with pytest.raises(HostUnreachable, match="ended with exit code"):
        followed.next(WAIT, 0.0)
    append(tmp_path, "two\n")
    assert followed.next(WAIT, 0.0).news == "two\n"


def test_the_words_of_ssh_say_why_a_host_is_not_reached(followed):
    followed._action._connection._build_command = lambda *_: ["/bin/sh", "-c", "echo 'ssh: no route to host' >&2; exit 255"]
    with pytest.raises(HostUnreachable, match=r"^ssh: no route to host$"):
        followed.next(WAIT, 0.0)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            "echo one >&2; echo two >&2; echo three >&2; echo 'no module trainer' >&2; exit 1",
            "exit code 1: two / three / no module trainer",
        ),
        ("exit 127", "exit code 127"),
    ],
)
def test_a_program_that_cannot_start_is_quoted(program, words, followed):
    """The host was reached: nobody must wait to learn why nothing comes from there."""
    followed._action._connection._build_command = lambda *_: ["/bin/sh", "-c", program]
    with pytest.raises(FollowingFailed, match=f"{words}$"):
        followed.next(WAIT, 0.0)


def test_other_transports_are_asked_again_and_again(tmp_path, alive, clock):
    asked, began = Feed(hosts.action(), str(tmp_path), "s", "metrics.jsonl", 1000, clock), clock.monotonic()
    asked._action._connection.transport = "paramiko"
    append(tmp_path, "one\n")
    assert asked.next(0.0, 0.0).news == "one\n"
    assert (asked.next(30.0, 0.0).news, programs()) == ("", [])
    assert clock.monotonic() - began == 31.0


def test_the_clocks_are_compared_without_the_slowest_answers(followed):
    good = {"t": 0.0, "begin": 0, "news": "", "more": False, "touched": 0.0, "alive": True, "exit": "", "folder": ""}
    for delay in (0.5, 0.01, 3.0):
        followed._line(json.dumps(good | {"t": 100.0}).encode(), 40.0 + delay)
    assert abs(followed.ahead - 59.99) < 1e-9


GOOD = {"t": 1.0, "begin": 0, "news": "", "more": False, "touched": 0.0, "alive": True, "exit": "", "folder": ""}


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "hello",
        "[]",
        "{}",
        "\x1b]0;evil\x07",
        "[" * 100_000,
        json.dumps(GOOD | {"t": "1"}),
        json.dumps(GOOD | {"t": float("nan")}),
        json.dumps(GOOD | {"begin": -1}),
        json.dumps(GOOD | {"begin": 10**40}),
        json.dumps(GOOD | {"news": None}),
        json.dumps(GOOD | {"alive": 1}),
        json.dumps(GOOD | {"another": 1}),
    ],
)
def test_a_host_that_answers_anything_else_is_unreachable(answer, followed, tmp_path):
    (tmp_path / "answer").write_text(answer + "\n")
    followed._action._connection._build_command = lambda *_: ["/bin/sh", "-c", f"cat {tmp_path}/answer; exec cat > /dev/null"]
    with pytest.raises(HostUnreachable) as caught:
        followed.next(WAIT, 0.0)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_an_answer_without_an_end_is_cut_off(followed):
    followed._action._connection._build_command = lambda *_: ["/bin/sh", "-c", "exec cat /dev/zero"]
    with pytest.raises(HostUnreachable, match="it answers without an end"):
        followed.next(WAIT, 0.0)
    assert followed._stream is None


def test_errors_without_an_end_are_cut_off(followed):
    followed._action._connection._build_command = lambda *_: [
        "/bin/sh",
        "-c",
        "head -c 2000000 /dev/zero >&2; printf x; cat > /dev/null",
    ]
    with pytest.raises(HostUnreachable, match="it answers without an end"):
        followed.next(WAIT, 0.0)


def test_a_verbose_connection_is_followed_on():
    """ssh -v writes to standard error as long as the worker trains: here more than is allowed, before this machine reads a line."""
    stream = follow._Stream(["/bin/sh", "-c", "echo one; head -c 2000000 /dev/zero >&2; echo two"], b"", 1000)
    stream._process.wait()
    assert [stream.line(0.0), stream.line(0.0)] == [b"one", b"two"]
    stream.close()


def test_a_longer_file_in_its_place_is_new(followed, tmp_path, alive):
    """As after somebody removed the worker's folder, and its supervisor made it again."""
    append(tmp_path, "old\n")
    followed.next(WAIT, 0.0)
    (tmp_path / "other").write_text("a longer line\n")
    (tmp_path / "other").replace(tmp_path / "metrics.jsonl")
    line = followed.next(WAIT, 0.0)
    assert (line.begin, line.news) == (0, "a longer line\n")


def test_a_removed_folder_is_told(followed, tmp_path, alive):
    append(tmp_path, "one\n")
    assert followed.next(WAIT, 0.0).folder == ""
    (tmp_path / "metrics.jsonl").unlink()
    tmp_path.rename(tmp_path.with_name("elsewhere"))
    assert followed.next(WAIT, 0.0).folder == "removed"


def test_a_read_only_folder_is_told(tmp_path, alive):
    with read_only(tmp_path):
        assert Feed(hosts.action(), str(tmp_path), "s", "metrics.jsonl", 1000).once().folder == "read-only"


def test_the_sent_program_imports_nothing_of_the_project():
    tree = ast.parse(follow._source())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert [name for name in imported if name.partition(".")[0] in ("trainer", "control", "plugins")] == []
