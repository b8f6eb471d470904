"""The command: what it prints, how it ends, and what it says where it cannot start."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from fedwarden.cli import main
from fedwarden.core.errors import FedwardenError
from fedwarden.dashboard.security import Access
from fedwarden.dashboard.server import address, listen

COMMAND = [sys.executable, "-m", "fedwarden", "dashboard", "--port", "0", "--no-open"]


def heed_ctrl_c():
    """A suite that runs in the background has it ignored, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def started(shared):
    """Start the command with more options; gives the process and what it printed first."""
    running = []

    def start(*options):
        command = [*COMMAND, "--home", str(shared), *options]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c
        )
        running.append(process)
        return process, process.stdout.readline()

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_it_serves_until_ctrl_c_and_ends_quietly(started):
    process, line = started()
    where = re.fullmatch(r"fedwarden dashboard: (http://127\.0\.0\.1:\d+/)\n", line)[1]
    with urllib.request.urlopen(where, timeout=10) as answer:
        assert answer.status == 200
        assert "Server" not in answer.headers
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 0
    assert out == ""
    assert "Traceback" not in err


@pytest.mark.slow
def test_another_address_needs_the_token_that_is_printed_once(started):
    process, line = started("--host", "0.0.0.0")
    port, token = re.search(r":(\d+)/\?token=([\w-]{40,})\n", line).groups()
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    assert opener.open(f"http://127.0.0.1:{port}/?token={token}", timeout=10).status == 200
    assert opener.open(f"http://127.0.0.1:{port}/_dash-layout", timeout=10).status == 200
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert token not in out + err


def test_a_port_in_use_is_one_line_and_code_2(shared, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["dashboard", "--home", str(shared), "--port", str(port)]) == 2
    err = capsys.readouterr().err
    assert err == f"error: port {port} of 127.0.0.1 is in use; choose another, or any with --port 0\n"


def test_an_address_that_is_not_this_machines():
    with pytest.raises(FedwardenError, match=r"cannot serve from 192\.0\.2\.1"):
        listen("192.0.2.1", 0)
    with pytest.raises(FedwardenError, match="there is no address"):
        listen("no such name", 0)


def test_the_address_of_all_interfaces_is_this_machines_name():
    assert address("0.0.0.0", 1, Access(token="t")) == f"http://{socket.gethostname()}:1/?token=t"


def test_a_workspace_that_is_not_there_yet_can_be_watched(tmp_path, asker):
    told = asker(tmp_path / "nowhere")("version.data", url__pathname="/", url__search="")["response"]
    assert "run something first" in str(told["problem"])
    assert not (tmp_path / "nowhere").exists()


def test_reading_changes_nothing_on_disk(home, asker):
    for rest in home.glob("ledger.sqlite-*"):
        rest.unlink()
    before = (home / "ledger.sqlite").read_bytes()
    os.chmod(home / "ledger.sqlite", 0o444)
    ask = asker(home)
    for path in ("/", "/run/1", "/run/2/audit"):
        assert "version" in ask("version.data", url__pathname=path, url__search="")["response"]
    assert (home / "ledger.sqlite").read_bytes() == before
