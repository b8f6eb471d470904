"""The command line. A command's module is imported when that command runs, so that ``--help`` is quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..core.errors import FedwardenError
from ..core.words import printable

COMMANDS = {  # name: module, what it does
    "demo": ("demo", "Twenty clients, three of them attackers, with and without the guard; under a minute."),
    "run": ("run", "Run the federation that a TOML file describes, or continue one that was cut off."),
    "list": ("listing", "What a scenario may name: aggregators, attacks, data sets, models, presets, rules, ..."),
    "runs": ("runs", "The runs of the workspace."),
    "show": ("show", "One run: its accuracy, its clients, who was excluded and why."),
    "dashboard": ("dashboard", "The workspace in a browser: runs, clients, what-ifs and audits, live."),
    "replay": ("replay", "Decide again from a run's recorded signals with another rule, without training."),
    "report": ("report", "One run as an HTML file to read, print and pass on: words, figures, tables, configuration."),
    "export": ("export", "One run as CSV, Parquet or JSON for other programs."),
    "send": ("send", "Send a run's values by client and round to TensorBoard, MLflow, OpenTelemetry or Prometheus."),
    "doctor": ("doctor", "Check the workspace, and save what can be read of a damaged ledger."),
    "audit": ("audit", "What the others would see of a planned change of one client's data; simulated, in words."),
    "bench": ("bench", "Run every defence against every attack, and write the tables and pictures."),
    "reproduce": ("reproduce", "Run a study behind the documentation's tables."),
    "tune": ("tune", "Search for PID coefficients on a scenario: train once per seed, then only replay."),
}
USAGE_ERROR: Any = typer.BadParameter.__base__  # typer has no public name for the base of its usage errors


class Interrupted(FedwardenError):
    """Ctrl-C in the middle of a run; the message says how to continue it."""


class Lazy(TyperGroup):
    """Shows the commands from the table above and imports one only to run it."""

    def resolve_command(self, ctx: Any, args: Any) -> Any:
        name, stub, rest = super().resolve_command(ctx, args)
        if name is None:
            return name, stub, rest
        command = typer.main.get_command(import_module(f"{__name__}.{COMMANDS[name][0]}").app)
        return name, command, rest


app = typer.Typer(
    name="fedwarden", cls=Lazy, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)


def _stub() -> None:
    """Stands for a command until it is resolved."""


for _name, (_, _help) in COMMANDS.items():
    app.command(_name, help=_help)(_stub)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context, show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Watches, guards and audits federated learning.

    Runs are recorded in a workspace: FEDWARDEN_HOME, else ./fedwarden-runs. Start with `fedwarden demo`.
    """
    if show_version:
        print(version("fedwarden"))
    elif context.invoked_subcommand is None:
        print(context.get_help(), end="")


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; what a user can cause ends in one line on standard error and exit code 2."""
    try:
        code = app(args, prog_name="fedwarden", standalone_mode=False)
        sys.stdout.flush()
        return _fail("interrupted", 130) if code == 130 else code if isinstance(code, int) else 0
    except BrokenPipeError:  # the reader has gone, as in `fedwarden runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except Interrupted as error:
        return _fail(str(error), 130)
    except USAGE_ERROR as error:
        return _fail(f"{error.format_message()} (see fedwarden {_command(error)}--help)", 2)
    except FedwardenError as error:
        return _fail(str(error), 2)
    except OSError as error:
        return _fail(f"cannot use {error.filename}: {error.strerror}" if error.filename else str(error), 2)


def _fail(message: str, code: int) -> int:
    print("error: " + printable(" ".join(message.split())), file=sys.stderr)
    return code


def _command(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.info_name} " if context is not None and context.parent is not None else ""
