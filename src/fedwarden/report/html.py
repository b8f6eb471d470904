"""A run as one HTML file that opens without a network and prints well.

In this order: a summary in words, figures, tables, and what it takes to repeat the run. Everything that a client or a
configuration can contain is escaped, and the page may run its own scripts only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from ..core.config import to_toml
from ..core.html import facts, table, text
from ..core.notes import Note
from ..core.words import rounds_of
from ..figures import audit, guard
from ..figures.theme import CONFIG, get_plotlyjs, plain, template
from ..sim.recorded import ON_FLOWER, SIMULATORS, truth_of
from ..store.contribution import contributions
from ..store.overview import digest, distinct_notes
from ..store.record import RunRecord
from .summary import day, tell

WATCHES, AUDITORS, SOURCES = 6, 3, 8  # drawn at most; sources of each auditor
HERE = Path(__file__).parent


def page(record: RunRecord) -> str:
    """The whole file."""
    drawn = [json.loads(figure.to_json()) for figure in figures(record)]
    for figure in drawn:
        del figure["layout"]["template"]
    looks = {"light": template(False).to_plotly_json(), "dark": template(True).to_plotly_json()}
    data = json.dumps({"figures": drawn, **looks, "config": CONFIG}).replace("<", "\\u003c")
    scripts = [get_plotlyjs(), (HERE / "page.js").read_text(encoding="utf-8")] if drawn else []
    run = record.run
    title, state = f"Run {run.id}: {text(run.name)}", f"{run.state}, begun on {day(run.created)}, engine {run.engine}"
    body = [
        f'<header><h1>{title}</h1><p class="soft">{text(state)}</p></header>',
        '<section class="summary" id="summary">' + "".join(f"<p>{text(s)}</p>" for s in tell(record)) + "</section>",
        _section("Figures", "".join(f'<figure id="figure-{i}"></figure>' for i in range(len(drawn)))),
        *(_section(title, f'<div class="scroll">{made}</div>') for title, made in tables(record)),
        _section("To repeat this run", repeat(record), "again"),
        '<noscript><p class="soft">Figures need JavaScript.</p></noscript>',
        *([f'<script type="application/json" id="figures">{data}</script>'] if drawn else []),
        *(f"<script>{script}</script>" for script in scripts),
    ]
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy(scripts)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title>",
        f"<style>{(HERE / 'page.css').read_text(encoding='utf-8')}</style>",
    ]
    return "\n".join(
        ['<!DOCTYPE html>\n<html lang="en">\n<head>', *head, "</head>\n<body>", *body, "</body>\n</html>\n"]
    )


def policy(scripts: list[str]) -> str:
    """What the page may do: run these scripts and show what they draw; nothing is loaded or sent."""
    sums = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{found}'" for found in sums) or "'none'"
    rest = "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed}; {rest}"


def figures(record: RunRecord) -> Iterator[Any]:
    """What is drawn: accuracy and loss, each watch, the sources of an audit; those with alarms first."""
    series = record.series
    if len(series) and series.metrics:
        yield guard.learning(series)
    for watch in list(series.watches)[:WATCHES]:
        yield guard.heatmap(series, watch)
        yield guard.scores(series, watch)
    loudest = sorted(record.observations.items(), key=lambda found: -sum(o.alarm for o in found[1]))
    for who, seen in loudest[:AUDITORS]:
        named = dict.fromkeys((o.source, o.metric, o.layer) for o in seen)
        alarmed = {(o.source, o.metric, o.layer) for o in seen if o.alarm}
        for source in sorted(named, key=lambda s: (s not in alarmed, s[2] != ""))[:SOURCES]:
            yield audit.leakage(seen, *source).update_layout(title_subtitle_text=plain(f"seen by {who}") if who else "")


def tables(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Title and table of the clients, rejected replies, warnings, and alarms, where there are any."""
    series, truth = record.series, truth_of(record.run)
    if series.clients:
        head = ["client", "rounds taken part", "last weight", "excluded in round", "why"]
        rows = [
            [c.client, c.rounds, f"{c.weight:.3g}", c.excluded_in or "", str(c.reason or "")]
            + ([] if truth is None else ["yes" if c.client in truth else ""])
            for c in digest(series, record.reasons)
        ]
        yield "Clients", table(head if truth is None else [*head, "attacker"], rows)
    if found := contributions(series):
        rows = [[client, c.rounds, str(c)] for client, c in sorted(found.items(), key=lambda pair: -pair[1].mean)]
        yield "Contributions on the server's samples", table(["client", "rounds measured", "contribution"], rows)
    if series.rejected:
        grouped: dict[tuple[str, Note], list[int]] = {}
        for t, client, reason in series.rejected:
            grouped.setdefault((client, reason), []).append(t)
        rows = [[client, rounds_of(rounds), str(reason)] for (client, reason), rounds in grouped.items()]
        yield "Rejected replies", table(["client", "when", "why"], rows)
    if series.notes:
        notes = distinct_notes(series.notes)
        yield "Warnings", table(["when", "warning"], [[rounds_of(rounds), str(note)] for note, rounds in notes.items()])
    if record.observations:
        head = ["auditor", "round", "source", "metric", "layer", "measured", "expected", "p"]
        rows = [
            [who, o.round, o.source, o.metric, o.layer or "all", *(f"{x:.4g}" for x in (o.value, o.expected, o.p))]
            for who, seen in record.observations.items() for o in seen if o.alarm
        ]  # fmt: skip
        yield "Alarms of the audit", table(head, rows) if rows else "<p>None.</p>"


def repeat(record: RunRecord) -> str:
    """The command, the exact configuration, and the versions."""
    run = record.run
    versions = facts(dict(run.versions), "Versions") if run.versions else ""
    if run.engine not in SIMULATORS:
        shown = json.dumps(run.config, indent=2, ensure_ascii=False)
        return f"<p>Recorded by {text(run.engine)} with this configuration:</p><pre>{escape(shown)}</pre>{versions}"
    file = re.sub(r"[^A-Za-z0-9_-]+", "-", run.name).strip("-") or "run"
    command = f"fedwarden run {file}.toml" + (" --engine flower" if run.engine == ON_FLOWER else "")
    config = f"<pre>{escape(to_toml(run.config))}</pre>"
    return f"<p>Save this as {file}.toml and run:</p><pre>{command}</pre>{config}{versions}"


def _section(title: str, content: str, kind: str = "") -> str:
    return f'<section class="{kind}"><h2>{title}</h2>{content}</section>' if content else ""
