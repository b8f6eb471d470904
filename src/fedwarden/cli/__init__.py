"""The command line: one module a command, imported when that command runs."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import entry_points, version
from types import FrameType
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from ..core.errors import ConfigError, FedwardenError
from ..core.late import modules
from ..core.log import FORM, JsonLines, Words

COMMANDS: Mapping[str, tuple[str | None, str]] = {  # name: module, or None for an entry point; what it does
    "demo": ("demo", "Twenty clients, four of them attackers, with and without the guard; under a minute."),
    "run": ("run", "Run the federation that a TOML file describes, or continue one that was interrupted."),
    "list": ("listing", "What a scenario may name: aggregators, attacks, data sets, models, presets, rules, ..."),
    "runs": ("workspace", "The runs of the workspace."),
    "show": ("show", "One run: its accuracy, its clients, their states and why."),
    "trust": ("word", "No watch acts on this client from the next round of a running federation on."),
    "exclude": ("word", "Leave a client out from the next round on, until it is readmitted."),
    "readmit": ("word", "Take back a client's exclusion or suspension, and clear the evidence against it."),
    "observe": ("word", "From the next round on, watches flag clients and leave none out."),
    "enforce": ("word", "Let the watches act again, after observe."),
    "cleanse": ("cleanse", "Unlearn backdoors in the model of a finished run."),
    "rollback": ("rollback", "Go back to before a client was in the model, and train on from there without it."),
    "dashboard": ("dashboard", "The workspace in a browser: runs, clients, what-ifs and audits, live."),
    "replay": ("replay", "Decide again from a run's recorded signals with another rule, without training."),
    "report": ("report", "One run as an HTML file to read, print and pass on: words, figures, tables, configuration."),
    "export": ("export", "One run as CSV, Parquet or JSON for other programs."),
    "send": ("send", "Send a run to TensorBoard, MLflow, OpenTelemetry or Prometheus, or what its sinks have missed."),
    "doctor": ("doctor", "Check the workspace, and save what can be read of a damaged ledger."),
    "prune": ("workspace", "Remove all but the newest runs, with their checkpoints."),
    "backup": ("workspace", "The workspace as one file, also while a run writes it."),
    "restore": ("workspace", "A workspace from such a file."),
    "audit": ("audit", "What the others would see of a planned change of one client's data; simulated, in words."),
    "bench": ("bench", "Run every attack against your own configuration; with fedwarden-research other benches too."),
    "reproduce": (None, "Make the tables and figures of the papers again; comes with fedwarden-research."),
    "tune": ("tune", "Search for PID coefficients on a scenario: train once per seed, then only replay."),
}
RESEARCH = "fedwarden-research (from a clone: pip install ./research)"
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
CTRL_C = 128 + signal.SIGINT
NO_MEMORY = re.compile(r"tried to allocate|annot allocate|out of memory|can't start new thread")  # torch's words
SMALLER = "lower train.batch_size, train.group, train.workers, data.clients or the size of the model"
LOG = logging.getLogger("fedwarden")
CORE = modules("fedwarden.core")  # the registry is needed by commands alone
USAGE_ERROR: Any = typer.BadParameter.__base__  # typer has no public name for the base of its usage errors


class Interrupted(FedwardenError):
    """Ctrl-C or a signal in the middle of a run; the message says how to continue it."""

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.number = number


class Lazy(TyperGroup):
    """Shows the commands from the table above and imports one only to run it."""

    def resolve_command(self, ctx: Any, args: Any) -> Any:
        name, stub, rest = super().resolve_command(ctx, args)
        if name is None:
            return name, stub, rest
        return name, command_of(name), rest


def command_of(name: str) -> Any:
    """A command, or the group of that name; one of another package is an entry point of ``fedwarden.commands``."""
    if (module := COMMANDS[name][0]) is not None:
        made: Any = typer.main.get_command(import_module(f"{__name__}.{module}").app)
        return getattr(made, "commands", {}).get(name, made)
    for entry in entry_points(group="fedwarden.commands", name=name):
        return typer.main.get_command(entry.load())
    raise ConfigError(f"fedwarden {name} comes with {RESEARCH}")


app = typer.Typer(
    name="fedwarden", cls=Lazy, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)


def _stub() -> None:
    """Stands for a command until it is resolved."""


for _name, (_, _help) in COMMANDS.items():
    app.command(_name, help=_help)(_stub)


class Stderr(logging.Handler):
    """The log on standard error, which may be closed, or belong to a progress bar for a while."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except OSError:  # a terminal that was closed, a full disk: what could not be written is not tried again
            _discard(sys.stdout)
            _discard(sys.stderr)


def log_as(form: str | None) -> None:
    """Log in words or as JSON from now on; by default as the environment says."""
    if (form := form or os.environ.get(FORM) or "words") not in ("words", "json"):
        raise typer.BadParameter(f"--log and {FORM} are words or json; got {form!r}")
    for handler in LOG.handlers:
        handler.setFormatter(JsonLines() if form == "json" else Words())


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    log: Annotated[
        str | None,
        typer.Option(
            callback=log_as,
            is_eager=True,
            metavar="words|json",
            help="How warnings, progress and errors are written to standard error; by default as FEDWARDEN_LOG says.",
        ),
    ] = None,
) -> None:
    """Watches, guards and audits federated learning.

    Runs are recorded in a workspace: FEDWARDEN_HOME, else ./fedwarden-runs. Start with `fedwarden demo`.
    """
    if show_version:
        print(version("fedwarden"))
    elif context.invoked_subcommand is None:
        print(context.get_help(), end="")


class Signalled(KeyboardInterrupt):
    """A signal that asks this process to end; everything on the way out is as after Ctrl-C."""


@contextmanager
def heeding_signals() -> Iterator[list[int]]:
    """End as after Ctrl-C on the signals of ``ENDING``; gives the list of those that came.

    Only the first interrupts: the next one must not cut off what it set going. A signal that is ignored, as SIGHUP is
    under nohup, or handled by somebody else stays so.
    """
    came: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:
            raise Signalled

    mine = threading.current_thread() is threading.main_thread()
    heeded = [s for s in ENDING if mine and signal.getsignal(s) is signal.SIG_DFL]
    try:
        for number in heeded:
            signal.signal(number, end)
        yield came
    finally:
        for number in heeded:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def logging_to(handler: logging.Handler) -> Iterator[None]:
    """The package's log, information included, goes there."""
    level = LOG.level
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    log_as(None)
    try:
        yield
    finally:
        LOG.removeHandler(handler)
        LOG.setLevel(level)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line; what a user can cause ends in one line on standard error and exit code 2.

    After a signal the exit code is 128 and the number of the signal, as a shell has it.
    """
    with heeding_signals() as came, logging_to(Stderr()):
        try:
            code = _run(args)
        except Signalled:  # it came while another end was being told of
            code = 0
    return 128 + came[0] if came else code


def _run(args: Sequence[str] | None) -> int:
    try:
        code = app(args, prog_name="fedwarden", standalone_mode=False)
        sys.stdout.flush()
        return _fail("interrupted", CTRL_C) if code == CTRL_C else code if isinstance(code, int) else 0
    except BrokenPipeError:  # the reader has gone, as in `fedwarden runs | head`
        _discard(sys.stdout)
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", CTRL_C)
    except Interrupted as error:
        return _fail(str(error), 128 + error.number)
    except USAGE_ERROR as error:
        return _fail(f"{error.format_message() or 'expected a command'} (see {_command(error)} --help)", 2)
    except Exception as error:
        if (message := told(error)) is None:
            raise
        return _fail(message, 2)


def told(error: BaseException) -> str | None:
    """What a user can do something about, in one sentence; None for a fault of this program."""
    if isinstance(error, OSError):
        return f"cannot use {error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and NO_MEMORY.search(str(error))):
        what = str(error).partition("\n")[0]
        return f"out of memory{f' ({what})' if what else ''}; {SMALLER}"
    return str(error) if isinstance(error, FedwardenError) else CORE("registry").blamed(error)


def _fail(message: str, code: int) -> int:
    LOG.error("%s", " ".join(message.split()))
    try:
        sys.stdout.flush()
    except OSError:
        _discard(sys.stdout)
    return code


def _discard(stream: TextIO) -> None:
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _command(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return "fedwarden" if context is None else str(context.command_path)
