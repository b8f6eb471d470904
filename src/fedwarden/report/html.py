"""A run as one HTML file that opens without a network and prints well.

In this order: a summary in words, figures, tables, and what it takes to repeat the run. Everything that a client or a
configuration can contain is escaped, and the page may run its own scripts only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from ..audit.answer import HEAD, interval
from ..core.config import to_toml
from ..core.notes import Note
from ..core.words import printable, rounds_of
from ..figures import audit, clients, guard
from ..figures.heatmap import loudest
from ..figures.theme import CONFIG, get_plotlyjs, plain, template
from ..sim.recorded import AUDIT, ON_FLOWER, SIMULATORS, answered, truth_of
from ..store.record import RunRecord
from ..store.story import Story
from .summary import day, tell

LINE = 20  # pixels of an entry of a legend
WATCHES, AUDITORS, SOURCES, SHEETS = 6, 3, 8, 4  # drawn at most; sources of each auditor
ROWS = 300  # of a table, the gravest first; the command line lists the others
HERE = Path(__file__).parent


def shown(value: object) -> object:
    """A value as the page shows it: nothing in it turns the text about it round. Tags are escaped after this.

    >>> print(shown("a\\rb"), shown(Markup("<b>")))
    a\\rb <b>
    """
    return value if isinstance(value, Markup) else printable(str(value))


TEMPLATES = Environment(
    loader=FileSystemLoader(HERE), autoescape=True, finalize=shown, trim_blocks=True, lstrip_blocks=True
)


class Table(NamedTuple):
    """Plain text in rows and columns."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[object]]


def page(record: RunRecord) -> str:
    """The whole file."""
    telling, quiet = [*figures(record)], [*watched(record, False)]
    drawn = [json.loads(figure.to_json()) for figure in (*telling, *quiet)]
    for figure in drawn:
        del figure["layout"]["template"]
        figure["layout"]["legend"] = {"orientation": "v"}
        figure["layout"]["height"] += LINE * sum(trace.get("showlegend", True) for trace in figure["data"])
    looks = {"light": template(False).to_plotly_json(), "dark": template(True).to_plotly_json()}
    data = json.dumps({"figures": drawn, **looks, "config": CONFIG}).replace("<", "\\u003c")
    scripts = [get_plotlyjs(), (HERE / "page.js").read_text(encoding="utf-8")] if drawn else []
    run = record.run
    return TEMPLATES.get_template("page.html.jinja").render(
        run=run,
        policy=policy(scripts),
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        state=f"{run.state_in_words}, begun on {day(run.created)}, engine {run.engine}",
        summary=tell(record),
        drawn=len(drawn),
        telling=len(telling),
        tables=[*tables(record)],
        most=ROWS,
        figures=Markup(data),
        scripts=map(Markup, scripts),
        **repeat(record),
    )


def policy(scripts: list[str]) -> str:
    """What the page may do: run these scripts and show what they draw; nothing is loaded or sent."""
    sums = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{found}'" for found in sums) or "'none'"
    rest = "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed}; {rest}"


def figures(record: RunRecord) -> Iterator[Any]:
    """What is drawn: accuracy and loss, a map, each watch, what the gravest clients told, the sources of an audit.

    Of the watches those that flagged most clients come first, of the sources those with alarms.
    """
    story, series = record.story, record.series
    if len(series) and guard.learned(series):
        yield guard.learning(series)
    if clients.has_map(series):
        yield clients.similarity(story)
    yield from watched(record, True)
    for client in list(story.standings)[:SHEETS]:
        if (drawn := clients.told(series, client)) is not None:
            yield drawn.update_layout(title_text=f"Client {plain(client)}: what it reported", margin_t=64)
    if found := answered(record.run):
        yield audit.aurocs(found.verdicts())
        return
    alarmed_most = sorted(record.observations.items(), key=lambda found: -sum(o.alarm for o in found[1]))
    for who, seen in alarmed_most[:AUDITORS]:
        named = dict.fromkeys((o.source, o.metric, o.layer) for o in seen)
        alarmed = {(o.source, o.metric, o.layer) for o in seen if o.alarm}
        for source in sorted(named, key=lambda s: (s not in alarmed, s[2] != ""))[:SOURCES]:
            yield audit.leakage(seen, *source).update_layout(title_subtitle_text=plain(f"seen by {who}") if who else "")


def watched(record: RunRecord, flagging: bool) -> Iterator[Any]:
    """The watches that flagged somebody, or the others."""
    for watch in loudest(record.series)[:WATCHES]:
        if record.series.watches[watch].flagged.any() == flagging:
            yield guard.heatmap(record.series, watch)
            yield guard.scores(record.story, watch)


def tables(record: RunRecord) -> Iterator[Table]:
    """The clients, rejected replies, warnings, and alarms, where there are any."""
    story, series, truth = record.story, record.series, truth_of(record.run)
    if found := answered(record.run):
        rows = [[m, f"the change {m.left}", interval(m.strongest), m.price] for m in found.measures]
        again = [["not rehearsed: fedwarden audit FILE -o audit.html does", "", "", ""]]
        yield Table("What helps", ("if you", "then", "highest AUROC", "price"), rows or again)
        yield Table("What the others would see", HEAD, found.rows())
        return
    if story.clients:
        head = ["client", "rounds taken part", "last weight", "state", "over the run", "why"]
        rows = [
            [name, c.rounds, f"{c.weight:.3g}", c.state, str(c.standing or ""), story.reason(name)]
            + ([] if truth is None else ["yes" if name in truth else ""])
            for name in dict.fromkeys([*story.standings, *story.clients])
            for c in [story.clients[name]]
        ]
        yield Table("Clients", head if truth is None else [*head, "attacker"], rows)
    if parts := takes_part(story):
        rows = [[client, *words] for client, words in parts.items()]
        yield Table("How clients take part", ["client", "answers", "contribution"], rows)
    if series.rejected:
        grouped: dict[tuple[str, Note], list[int]] = {}
        for t, client, reason in series.rejected:
            grouped.setdefault((client, reason), []).append(t)
        rows = [[client, rounds_of(rounds), str(reason)] for (client, reason), rounds in grouped.items()]
        yield Table("Rejected replies", ["client", "when", "why"], rows)
    if notes := story.warnings():
        rows = [[rounds_of(rounds), illustrated(note)] for note, rounds in notes.items()]
        yield Table("Warnings", ["when", "warning"], rows)
    if record.observations:
        head = ["auditor", "round", "source", "metric", "layer", "measured", "expected", "p"]
        rows = [
            [who, o.round, o.source, o.metric, o.layer or "all", *(f"{x:.4g}" for x in (o.value, o.expected, o.p))]
            for who, seen in record.observations.items() for o in seen if o.alarm
        ]  # fmt: skip
        yield Table("Alarms of the audit", head, rows)


def illustrated(note: Note) -> str:
    """A note as a sentence, with its picture if it has one."""
    address = note.values.get("picture")
    if not isinstance(address, str) or not re.fullmatch(r"data:image/png;base64,[A-Za-z0-9+/=]+", address):
        return str(note)
    image = Markup('<img src="{}" alt="the mark" style="width: 7em; image-rendering: pixelated">').format(address)
    return Markup("{}<br>{}").format(str(note), image)


def takes_part(story: Story) -> dict[str, list[str]]:
    """How each client answers, and what its updates do for the model; in words, the most helpful first."""
    given = {c: x for c in story.series.clients if (x := story.contribution(c)) is not None}
    order = {client: -x.mean for client, x in given.items() if math.isfinite(x.mean)}
    found = {}
    for client in sorted(story.series.clients, key=lambda c: order.get(c, math.inf)):
        words = [str(given.get(client, "")), story.at_odds(client)]
        found[client] = [str(story.health[client]), "; contradiction: ".join(filter(None, words))]
    return found


def repeat(record: RunRecord) -> dict[str, str]:
    """The exact configuration, and for a simulation the command and the name of the file that it reads."""
    run = record.run
    if run.engine not in (*SIMULATORS, AUDIT):
        return {"config": escape(json.dumps(run.config, indent=2, ensure_ascii=False))}
    file = re.sub(r"[^A-Za-z0-9_-]+", "-", run.name).strip("-") or "run"
    command = f"fedwarden {'audit' if run.engine == AUDIT else 'run'} {file}.toml"
    command += " --engine flower" if run.engine == ON_FLOWER else ""
    return {"config": escape(to_toml(run.config)), "file": file, "command": command}
