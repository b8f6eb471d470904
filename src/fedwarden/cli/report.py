"""``fedwarden report``: a run as one page to read, print and pass on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import report as room
from ..core.errors import ConfigError
from ..report.summary import tell
from ..store.record import RunRecord
from .common import AsJson, Force, Home, Imports, Output, RunNumber, bring, emit, out, reader, safe, vacant

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def report(
    run: RunNumber,
    output: Output = None,
    client: Annotated[
        str | None, typer.Option(help="One client's story alone, to pass on to it: of the others it has counts only.")
    ] = None,
    thresholds: Annotated[
        bool, typer.Option("--thresholds", help="Tell the client the thresholds too; an attacker can use them.")
    ] = False,
    force: Force = False,
    imports: Imports = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Write a run as one HTML file that opens without a network: words, figures, tables, and how to repeat it.

    `fedwarden report 1 -o report.html` tells run 1, and `fedwarden report 1 --client Basel -o basel.html` tells Basel
    what was measured of it, when, and what to do. `--json` prints the words and where the file is.
    """
    if output and output.suffix.lower() not in ("", ".html", ".htm"):
        raise ConfigError(f"a report is HTML, to print or save from a browser; {output.name} should end in .html")
    bring(imports)
    with reader(home) as ledger:
        record = RunRecord.read(ledger, run)
        path = vacant(output or Path(f"report-{record.run.id}{'' if client is None else '-client'}.html"), force)
        if client is None:
            made, told = room.html.page(record), tell(record)
        else:
            made, told = room.client.client_page(record, client, thresholds)
    path.write_text(made, encoding="utf-8")
    if as_json:
        return emit({"run": record.run.id, "file": str(path.resolve()), "summary": told})
    for sentence in told:
        out.print(safe(sentence))
    return out.print(f"\nwrote {safe(str(path))}", soft_wrap=True)
