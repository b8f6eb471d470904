"""What the commands share: options, consoles, JSON, and hints on what to run next."""

from __future__ import annotations

import json
import logging
import math
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..core.errors import ConfigError
from ..core.log import JsonLines
from ..core.notes import Note
from ..core.plugins import load, options
from ..core.words import printable
from ..store.ledger import Ledger, home

Home = Annotated[
    Path | None,
    typer.Option("--home", help="The workspace to use in place of FEDWARDEN_HOME.", metavar="DIR", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on standard output.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a key, as in --set train.lr=0.05; may be repeated.", metavar="A.B=C"),
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        help="Import this module or file first, for plug-ins that a run names; may be repeated. It runs its code: "
        "name only what you trust.",
        metavar="MODULE",
    ),
]
RunNumber = Annotated[str, typer.Argument(help="A run's number, or its name for the latest of that name.")]

Output = Annotated[Path | None, typer.Option("--output", "-o", help="The file; by default named after the run.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that is there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no warnings.")]
NEEDS = {"report": "plotly", "dashboard": "dash"}  # commands that a core installation does not have

LOG = logging.getLogger("fedwarden")
out = Console(highlight=False)
if not out.is_terminal:  # a file or a pipe: nothing is wrapped
    out = Console(highlight=False, soft_wrap=True, width=1000)
err = Console(stderr=True, highlight=False)


def safe(text: object) -> str:
    """What others wrote, for rich's markup: its brackets are no markup, and nothing in it steers the terminal.

    >>> print(safe("[red]\\x1b[2J"))
    \\[red]\\x1b[2J
    """
    return escape(printable(str(text)))


def lively() -> bool:
    """Whether somebody sits at a terminal, who can be asked."""
    return sys.stdin.isatty() and out.is_terminal


def bring(imports: Sequence[str] | None, beside: Path | None = None) -> tuple[str, ...]:
    """Import what ``--import`` asks for; the names of the modules."""
    return tuple(load(spec, beside).__name__ for spec in imports or ())


def reader(folder: Path | None) -> Ledger:
    """The ledger, for reading alone."""
    return Ledger(folder, read_only=True)


def emit(value: Mapping[str, object]) -> None:
    """Print one JSON object; numbers that JSON does not have become null."""
    print(json.dumps(_plain(value), indent=2, allow_nan=False).replace("\x7f", "\\u007f"))  # json leaves it as it is


def hint(*commands: str, folder: Path | None = None, imports: Iterable[str] = ()) -> None:
    """What to run next, of what is installed; a workspace given on the command line, and plug-ins, are passed along."""
    tail = f" --home {shlex.quote(str(folder))}" if folder is not None and folder != home() else ""
    lines = {}
    for command in commands:
        line, _, comment = command.partition("  # ")
        if has(verb := line.split()[1]):
            lines[line + (options(imports) if verb in ("run", "replay") else "") + tail] = comment
    if not lines:
        return
    out.print("\nNext:", style="bold")
    width = max(map(len, lines))
    for line, comment in lines.items():
        out.print(f"  {line.ljust(width)}", markup=False, soft_wrap=True, end="")
        out.print(f"  # {comment}" if comment else "", markup=False, soft_wrap=True, style="dim")


def has(command: str) -> bool:
    """Whether what a command needs is installed."""
    return command not in NEEDS or find_spec(NEEDS[command]) is not None


def vacant(path: Path, force: bool = False) -> Path:
    """The path, unless a file is there that may not be replaced; a ledger, a device or a pipe never may."""
    ledger = path.name.startswith("ledger.sqlite")
    if ledger or (path.exists() and not path.is_file()):
        what = "a ledger" if ledger else "a folder" if path.is_dir() else "no regular file"
        raise ConfigError(f"{path} is {what}; give another file")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent}; make it, or give a file in another one")
    if path.exists() and not force:
        raise ConfigError(f"{path} is there already; give another file, or --force to replace it")
    return path


def table(*columns: str, title: str | None = None, left: Sequence[int] = (0,)) -> Table:
    """A plain table; columns are right-aligned but for those in ``left``."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, name in enumerate(columns):
        made.add_column(name, justify="left" if i in left else "right", header_style="bold cyan", overflow="fold")
    return made


def progress(quiet: bool = False) -> Progress:
    """A progress bar on standard error, but not between lines of JSON; gone when it ends."""
    quiet = quiet or any(isinstance(handler.formatter, JsonLines) for handler in LOG.handlers)
    return Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"), TimeRemainingColumn(),
        console=err, transient=True, disable=quiet or not err.is_terminal, speed_estimate_period=3600,
    )  # fmt: skip


def notes_as_tables(notes: Mapping[Note, Sequence[int]]) -> list[dict[str, Any]]:
    """Notes with their rounds, for a program: the sentence, and what it is made of."""
    return [{"note": str(note), **note.table(), "rounds": rounds} for note, rounds in notes.items()]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | np.ndarray):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
