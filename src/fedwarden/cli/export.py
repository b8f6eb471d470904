"""``fedwarden export``: a run as a file for other programs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, cast

import typer

from ..core.errors import ConfigError
from ..core.words import printable
from ..store.export import draft, write_csv, write_json, write_parquet
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
    """Write a run to a file: one row per round, watch and client.

    The columns are round, client, watch, signal, score, threshold, flagged, weight, examples and excluded. JSON also
    has the configuration, metrics, rejected replies, warnings and what auditors observed.

    `fedwarden export 1 --to parquet` writes run-1.parquet; `fedwarden export 1 -o - | head` looks at the rows.
    """
    to = kind or by_ending(output)
    if str(output) == "-" and to is Format.PARQUET:
        raise ConfigError("Parquet is not text; give a file with -o, or --to csv")
    write = write_csv if to is Format.CSV else write_json
    with reader(home) as ledger, ledger.snapshot():
        record = RunRecord.read(ledger, run, (), ())
        if str(output) == "-":
            return write(record, cast(IO[str], Terminal()))
        path = vacant(output or Path(f"run-{record.run.id}.{to}"), force)
        with draft(path) as made:
            if to is Format.PARQUET:
                write_parquet(record, made)
            else:
                with open(made, "w", encoding="utf-8", newline="") as file:
                    write(record, file)
    return LOG.info("wrote %s", path)


class Terminal:
    """Standard output, where nothing that is written steers the terminal."""

    def write(self, text: str) -> None:
        print("\n".join(map(printable, text.replace("\x7f", "\\u007f").split("\n"))), end="")


def by_ending(output: Path | None) -> Format:
    """The format that the ending of a file names.

    >>> by_ending(Path("run.json")).value, by_ending(None).value
    ('json', 'csv')
    """
    ending = output.suffix.lower().removeprefix(".") if output else ""
    if ending and ending not in set(Format):
        raise ConfigError(f"the ending .{ending} is none of .csv, .parquet and .json; say which with --to")
    return Format(ending or "csv")
