"""The report as a file: what it says, what it lets a client do, and what a browser makes of it."""

import base64
import hashlib
import re
import tomllib
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.support.ui import WebDriverWait

from fedwarden.core.notes import Note
from fedwarden.core.types import Observation, Rejection
from fedwarden.report.html import figures, page, watched
from fedwarden.sim.scenario import load_scenario
from fedwarden.store.ledger import Ledger, Run
from fedwarden.store.record import RunRecord
from fedwarden.store.story import Story

FITS = "return document.documentElement.scrollWidth <= innerWidth"
DRAWN = "return [...document.querySelectorAll('figure')].every(f => f.querySelector('.main-svg'))"
WHOLE = """
    const plots = [...document.querySelectorAll('figure')];
    return plots.every(f => Math.abs(f.querySelector('.main-svg').getBoundingClientRect().height - f.offsetHeight) < 2);
"""
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


def run_of(engine="flower", **changes):
    return replace(Run(3, "ward 7", 0.0, "done", engine, {"rounds": 6}, {"torch": "2.13"}, {}, 6), **changes)


def record_of(records, run=None, observations=None):
    return RunRecord(run or run_of(), Story.of(records), observations or {})


class Reader(HTMLParser):
    """Tags in order, text outside of scripts, and scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.scripts, self.inside = [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        (self.scripts if self.inside == "script" else self.words).append(data)


def test_the_order_is_words_clients_figures_tables_configuration(played):
    text = page(record_of(played))
    places = [
        text.index(x) for x in ('id="summary"', ">Clients<", ">Figures<", ">Rejected replies<", ">To repeat this run<")
    ]
    assert places == sorted(places)
    assert "h since round 2" in text


def test_contributions_stand_in_a_table_from_the_most_helpful_on(played, weighed):
    assert "Contributions" not in page(record_of(played))
    words = " ".join(Reader(page(record_of(weighed))).words)
    assert words.index("helps the model: its updates lower") < words.index("harms the model: its updates raise")


def test_the_watch_that_decided_comes_first(played):
    still = [replace(r, watches=(replace(r.watches[0], name="still", flagged=r.flagged & False), *r.watches))
             for r in played]  # fmt: skip
    shown, folded = page(record_of(still)).split("<details>")
    assert (shown.count("<figure"), folded.count("<figure")) == (3, 2)
    titles = [figure.layout.title.text for figure in watched(record_of(still), False)]
    assert titles == ["still: scores by client and round", "still: scores over rounds"]


def test_the_gravest_clients_have_a_figure_of_what_they_told(played):
    told = [replace(r, reported={"train/loss": dict.fromkeys(r.client_ids, 1 / r.round), "map/x": {}}) for r in played]
    titles = [figure.layout.title.text for figure in figures(record_of(told))]
    assert titles.count("Client h: what it reported") == 1
    words = " ".join(Reader(page(record_of(told))).words)
    assert "answered in 2 of 2 rounds" in words


def test_nothing_is_loaded_and_only_the_pages_own_scripts_run(played):
    read = Reader(page(record_of(played)))
    assert not [a for _, a in read.tags if {"src", "href"} & set(a)]
    policy = next(a["content"] for tag, a in read.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    runs = [s for (tag, a), s in zip([t for t in read.tags if t[0] == "script"], read.scripts, strict=True) if not a]
    assert {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in runs} == allowed
    assert len(runs) == 2


def hostile(played):
    """Everything that a client or a configuration can say, with markup in it."""
    rename = {"h": EVIL + "h", "b": EVIL + "b"}
    records = [
        replace(
            r,
            client_ids=tuple(rename.get(c, c) for c in r.client_ids),
            excluded=tuple(rename.get(c, c) for c in r.excluded),
            rejected=tuple(Rejection(rename.get(x.client_id, x.client_id), Note.text(EVIL)) for x in r.rejected),
            watches=tuple(replace(w, name=EVIL, words=EVIL) for w in r.watches),
            notes=(Note.text(EVIL),),
            metrics={"accuracy": 0.5, f"{EVIL} acc": 0.5},
        )
        for r in played
    ]
    run = run_of(EVIL, name=EVIL, config={EVIL: {EVIL: EVIL}}, versions={EVIL: EVIL})
    seen = [Observation(t, EVIL, EVIL, EVIL, 1.0, 1.0, 0.1, 0.9, t == 3) for t in (2, 3)]
    return record_of(records, run, {EVIL: seen})


def test_what_a_client_says_is_text(played):
    read = Reader(page(hostile(played)))
    assert "img" not in {tag for tag, _ in read.tags}
    assert sum(tag == "script" for tag, _ in read.tags) == 3  # figures, Plotly, the page's own
    assert not [a for _, a in read.tags if any(name.startswith("on") for name in a)]
    assert sum(EVIL in word for word in read.words) > 5


def test_a_simulation_can_be_repeated_from_the_page(played):
    config = load_scenario(
        {"name": "mine", "attacks": [{"name": "label_flip", "count": 2}], "target": 0.9}
    ).model_dump()
    text = page(record_of(played, run_of("in-process", config=config)))
    shown = [unescape(p) for p in re.findall(r"<pre[^>]*>(.*?)</pre>", text, re.S)]
    assert shown[0] == "fedwarden run ward-7.toml"
    assert load_scenario(tomllib.loads(shown[1])) == load_scenario(config)
    on_flower = page(record_of(played, run_of("flower-simulation", config=config)))
    assert "fedwarden run ward-7.toml --engine flower" in on_flower


def cases(played):
    bare = [replace(r, watches=(), flagged=np.zeros(len(r.client_ids), bool)) for r in played]
    seen = [Observation(t, "weights", "cosine", "", 1 / t, 0.5, 1.0, 0.4, t == 3) for t in (2, 3)]
    yield "no round", record_of([], run_of(state="running"))
    yield "no watch", record_of(bare)
    yield "one round", record_of(played[:1], run_of(state="running"))
    yield "audit only", record_of([], run_of("audit"), {"": seen})
    yield "no metric", record_of([replace(r, metrics={}) for r in played])
    yield "all", hostile(played)


@pytest.mark.slow
def test_every_kind_of_run_opens_in_a_browser_without_complaint(browser, played, tmp_path):
    for name, record in cases(played):
        path = tmp_path / f"{name}.html"
        path.write_text(page(record), encoding="utf-8")
        browser.get(path.as_uri())
        assert bool(browser.find_elements("tag name", "figure")) == (name != "no round"), name
        WebDriverWait(browser, 60).until(lambda b: b.execute_script(DRAWN), name)
        assert browser.execute_script(FITS), name


@pytest.mark.slow
def test_light_dark_paper_and_a_narrow_screen(browser, media, played, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page(record_of(played)), encoding="utf-8")
    paper = "return getComputedStyle(document.body).backgroundColor"
    ink = "return getComputedStyle(document.querySelector('figure .gtitle')).fill"
    browser.get(path.as_uri())
    assert browser.execute_script(paper) == "rgb(255, 255, 255)"
    WebDriverWait(browser, 60).until(lambda b: b.execute_script(DRAWN))
    light = browser.execute_script(ink)
    media(dark=True)
    assert browser.execute_script(paper) == "rgb(20, 24, 31)"
    WebDriverWait(browser, 60).until(lambda b: b.execute_script(ink) != light)
    browser.set_window_size(380, 800)
    WebDriverWait(browser, 60).until(lambda b: b.execute_script(FITS) and b.execute_script(WHOLE))
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 6


@pytest.mark.slow
def test_the_cells_of_the_heatmap_speak_when_pointed_at(browser, played, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page(record_of(played)), encoding="utf-8")
    browser.get(path.as_uri())
    WebDriverWait(browser, 60).until(lambda b: b.execute_script(DRAWN))
    x, y = browser.execute_script(
        """
        const plot = document.getElementById('figure-1'), { xaxis, yaxis } = plot._fullLayout;
        plot.scrollIntoView();
        const { left, top } = plot.getBoundingClientRect();
        return [left + xaxis._offset + xaxis.c2p(0), top + yaxis._offset + yaxis.c2p(7)].map(Math.round);
        """
    )
    move = ActionChains(browser)
    move.w3c_actions.pointer_action.move_to_location(x, y)
    move.perform()
    said = WebDriverWait(browser, 60).until(
        lambda b: b.execute_script("return document.querySelector('#figure-1 .hoverlayer').textContent")
    )
    first = played[0].watches[0]
    assert "client h, round 1" in said
    assert f"{first.scores[7]:.4g}" in said


def test_a_ledger_makes_the_same_page(played, tmp_path):
    with Ledger(tmp_path) as ledger:
        number = ledger.start("ward 7", "flower", {"rounds": 6}, {"torch": "2.13"})
        for record in played:
            ledger.append(number, record)
        ledger.finish(number, "done")
    found = RunRecord.open(number, tmp_path)
    assert page(found) == page(record_of(played, found.run))
