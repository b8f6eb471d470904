"""``fedwarden export``: a run as a file for other programs."""

from __future__ import annotations

import io
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import ConfigError
from ..core.words import printable
from ..store.export import write_csv, write_json, write_parquet
from ..store.record import RunRecord
from .common import LOG, Force, Home, RunNumber, reader, vacant


class Format(StrEnum):
    """What is written."""

    CSV = "csv"
    PARQUET = "parquet"
    JSON = "json"


app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def export(
    run: RunNumber,
    kind: Annotated[
        Format | None,
        typer.Option(
            "--to",
            help="CSV and Parquet: one long table. JSON: everything. By default what the file's ending says, or CSV.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file; - is standard output.", show_default="run-N.csv"),
    ] = None,
    force: Force = False,
    home: Home = None,
) -> None:
    """Write a run to a file: one row per round, client and watch.

    The columns are round, client, watch, signal, score, threshold, flagged, weight, examples and excluded. JSON also
    has the configuration, metrics, rejected replies, warnings and what auditors observed.

    `fedwarden export 1 --to parquet` writes run-1.parquet; `fedwarden export 1 -o - | head` looks at the rows.
    """
    to = kind or by_ending(output)
    with reader(home) as ledger:
        record = RunRecord.read(ledger, run)
    if str(output) == "-":
        if to is Format.PARQUET:
            raise ConfigError("Parquet is not text; give a file with -o, or --to csv")
        text = io.StringIO()
        (write_csv if to is Format.CSV else write_json)(record, text)
        lines = text.getvalue().split("\n") if to is Format.CSV else [text.getvalue().replace("\x7f", "\\u007f")]
        return print("\n".join(map(printable, lines)), end="")
    path = vacant(output or Path(f"run-{record.run.id}.{to}"), force)
    if to is Format.PARQUET:
        write_parquet(record, path)
    else:
        with open(path, "w", encoding="utf-8", newline="") as file:
            (write_csv if to is Format.CSV else write_json)(record, file)
    return LOG.info("wrote %s", path)


def by_ending(output: Path | None) -> Format:
    """The format that the ending of a file names.

    >>> by_ending(Path("run.json")).value, by_ending(None).value
    ('json', 'csv')
    """
    ending = output.suffix.lower().removeprefix(".") if output else ""
    if ending and ending not in set(Format):
        raise ConfigError(f"the ending .{ending} is none of .csv, .parquet and .json; say which with --to")
    return Format(ending or "csv")
