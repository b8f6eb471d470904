"""``fedwarden report``: a run as one page to read, print and pass on."""

from __future__ import annotations

from pathlib import Path

import typer

from ..core.errors import ConfigError
from ..report.html import page
from ..report.summary import tell
from ..sim.scenario import ASKED, load_modules
from ..store.record import RunRecord
from .common import AsJson, Force, Home, Imports, Output, RunNumber, emit, out, reader, safe, vacant

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def report(
    run: RunNumber,
    output: Output = None,
    force: Force = False,
    imports: Imports = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Write a run as one HTML file that opens without a network: words, figures, tables, and how to repeat it.

    `fedwarden report 1 -o report.html` tells run 1; `--json` prints the words and where the file is.
    """
    if output and output.suffix.lower() not in ("", ".html", ".htm"):
        raise ConfigError(f"a report is HTML, to print or save from a browser; {output.name} should end in .html")
    load_modules(imports or (), ASKED)
    with reader(home) as ledger:
        record = RunRecord.read(ledger, run)
    path = vacant(output or Path(f"report-{record.run.id}.html"), force)
    path.write_text(page(record), encoding="utf-8")
    told = tell(record)
    if as_json:
        return emit({"run": record.run.id, "file": str(path.resolve()), "summary": told})
    for sentence in told:
        out.print(safe(sentence), soft_wrap=True)
    return out.print(f"\nwrote {safe(str(path))}", soft_wrap=True)
