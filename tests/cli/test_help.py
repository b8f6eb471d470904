"""Help is there for every command, and quick."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import fedwarden
from fedwarden.cli import COMMANDS, app

runner = CliRunner()


def test_help_lists_every_command():
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    for name, (_, text) in COMMANDS.items():
        assert f" {name} " in result.stdout
        assert text.split(";")[0].split(",")[0] in result.stdout


def test_no_arguments_show_the_help(call):
    code, out, _ = call()
    assert code == 0
    assert "Usage: fedwarden" in out


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command(name):
    result = runner.invoke(app, [name, "--help"])
    assert result.exit_code == 0
    assert "--help" in result.stdout
    assert "completion" not in result.stdout


def test_python_m_fedwarden():
    done = subprocess.run([sys.executable, "-m", "fedwarden", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == fedwarden.__version__
