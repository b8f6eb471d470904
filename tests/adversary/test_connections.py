"""Connections that never finish a request do not keep the others from theirs; against the real command."""

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, suppress
from threading import Event, Thread

import pytest

pytest.importorskip("dash", reason="the extra 'dashboard' is not installed")

from fedwarden.dashboard import server as module
from fedwarden.store.ledger import Ledger

pytestmark = pytest.mark.slow

MANY = 300


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """The port of a dashboard in a process of its own."""
    home = tmp_path_factory.mktemp("home")
    with Ledger(home) as ledger:
        ledger.start("guarded", "flower", {"rounds": 6}, {})
    command = [sys.executable, "-m", "fedwarden", "dashboard", "--port", "0", "--home", str(home)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield int(re.search(r":(\d+)/", process.stdout.readline())[1])
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()


def ask(port):
    """One page; a server that waits until it closes slow connections, after 20 seconds, runs into the time-out."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=15) as answer:
        assert answer.status == 200
        assert answer.read()


def opened(stack, port, count=MANY):
    return [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)) for _ in range(count)]


BEGINNINGS = {
    "nothing sent": b"",
    "half a line": b"GET / HT",
    "headers without end": b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: ",
    "a body that does not come": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n",
}


@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
def test_half_open_connections(port, beginning):
    ask(port)
    with ExitStack() as stack:
        for connection in opened(stack, port):
            with suppress(OSError):  # closed, to make room
                connection.sendall(beginning)
        for _ in range(3):
            ask(port)


def test_a_byte_now_and_then(port):
    """Slow loris: every connection sends another byte every half second, for as long as others ask."""
    stop = Event()
    with ExitStack() as stack:
        connections = opened(stack, port)

        def drip():
            while not stop.wait(0.5):
                for connection in connections:
                    with suppress(OSError):
                        connection.send(b"x")

        for connection in connections:
            with suppress(OSError):
                connection.sendall(BEGINNINGS["headers without end"])
        thread = Thread(target=drip)
        thread.start()
        try:
            for _ in range(6):
                ask(port)
                time.sleep(0.5)
        finally:
            stop.set()
            thread.join()


def test_answers_that_nobody_reads(port):
    """Each asks for the largest script and reads nothing of it."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
        paths = re.findall(r'src="([^"]*(?:plotly|dash_core)[^"]*)"', answer.read().decode())
    with ExitStack() as stack:
        for connection in opened(stack, port, 30):
            connection.sendall(f"GET {paths[0]} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        for _ in range(3):
            ask(port)


def test_a_large_body_is_refused_before_it_is_kept(port):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000000\r\n\r\n" + b"x" * 1000)
        assert b" 413 " in connection.recv(100)


@pytest.fixture
def quick(tmp_path, monkeypatch, request):
    """A server in this process for four, who may be silent or slow for a second or two, or as long as is asked for."""
    seconds = getattr(request, "param", 2)
    for name, value in (("IDLE", seconds), ("SLOW", float(seconds)), ("MOST", 4)):
        monkeypatch.setattr(module, name, value)
    server, where = module.prepare(tmp_path, "127.0.0.1", 0)
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    yield server, int(re.search(r":(\d+)/", where)[1])
    server._map.clear()  # ends the loop
    thread.join(timeout=10)
    server.task_dispatcher.shutdown()


def closed_within(connection, seconds, drip=b""):
    """Whether the server closes the connection in that time."""
    connection.settimeout(0.3)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if drip:
                connection.send(drip)
            if connection.recv(100) == b"":
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def test_who_is_silent_or_slow_is_closed(quick):
    _, port = quick
    with ExitStack() as stack:
        silent, slow = opened(stack, port, 2)
        slow.sendall(b"GET / HT")
        assert closed_within(silent, 60)
        assert closed_within(slow, 60, drip=b"x")


@pytest.mark.parametrize("quick", [600], indirect=True)
def test_who_waits_longest_makes_room(quick):
    server, port = quick
    with ExitStack() as stack:
        first, *others = opened(stack, port, 5)
        assert closed_within(first, 60)
        assert len(server.active_channels) == 4
        assert not any(closed_within(other, 0.01) for other in others)
