"""What the pages say and choose, from plain values and from anything a browser may send."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwarden.core.notes import Note
from fedwarden.core.types import RoundRecord, WatchRecord
from fedwarden.dashboard import routes
from fedwarden.dashboard.pages import PAGES, audit, runs, whatif
from fedwarden.dashboard.pages.client import sheet
from fedwarden.dashboard.pages.glance import Glance, listing
from fedwarden.dashboard.pages.run import clicked_client
from fedwarden.dashboard.state import Workspace
from fedwarden.store.ledger import Ledger
from fedwarden.store.series import Series
from fedwarden.store.story import Story

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=9,
)


def text(part):
    """What a reader sees of a part of a page, as JSON."""
    return json.dumps(part, default=lambda c: c.to_plotly_json(), ensure_ascii=False)


@given(ANYTHING, ANYTHING)
def test_any_address_is_a_page(path, search):
    page = routes.read(path, search)
    assert page.kind in (*PAGES, "nowhere")
    assert 0 <= page.run <= routes.LARGEST
    assert all(isinstance(v, str) for v in page.query.values())


@given(st.integers(1, routes.LARGEST), st.dictionaries(st.sampled_from(["client", "watch"]), st.text(min_size=1)))
def test_links_lead_where_they_say(run, values):
    for kind in ("run", "what-if", "audit"):
        path, _, search = routes.link(kind, run, **values).partition("?")
        assert routes.read(path, search) == routes.Page(kind, run, values)


@pytest.mark.parametrize("kind", PAGES)
def test_every_page_has_parts_and_a_version(kind, shared):
    page = routes.Page(kind, 1, {"client": "<b>", "first": "1", "second": "x", "rule": "no such rule", "scale": "huge"})
    assert "tick" in text(PAGES[kind].show(page))
    version = PAGES[kind].version(Workspace(shared), page)
    assert version == PAGES[kind].version(Workspace(shared), page)


def rows(*names):
    row = {"created": 0.0, "state": "done", "state_in_words": "done", "engine": "flower", "rounds": 3, "of": None,
           "preset": None, "accuracy": None, "excluded": [], "verdict": "nobody", "error": ""}  # fmt: skip
    return [{"run": i, "name": n, **row} for i, n in enumerate(names, 1)]


def test_the_filter_finds_every_word_somewhere():
    assert "alpha" in text(runs.listing(rows("alpha", "beta"), "ALPH flow", ()))
    assert "beta" not in text(runs.listing(rows("alpha", "beta"), "ALPH flow", ()))
    assert "None of 2 runs" in text(runs.listing(rows("alpha", "beta"), "gamma", ()))
    assert "fedwarden demo" in text(runs.listing([], "", ()))
    assert "7 more" in text(runs.listing(rows(*map(str, range(runs.ROWS + 7))), "", ()))


def series():
    """Three clients at 1, 2 and 4 with a limit of 3; d is rejected throughout."""
    scores = np.array([1.0, 2.0, 4.0, np.nan])
    watch = WatchRecord("far", scores, scores, 3.0, scores > 3)
    record = RoundRecord(1, tuple("abcd"), np.ones(4), np.full(4, 0.25), (watch,), scores > 3)
    return Series.of([record])


def test_one_row_a_client_the_gravest_first_and_any_number_of_them():
    def row(name, kind="in the model", height=0.5):
        return Glance(name, kind, kind, 0.1, {"far": height}, (0.1, height))

    few = listing(1, [row("<b>eve</b>", "excluded", 3.0), row("a")], ("far",), "", {})
    shown = text(few)
    assert shown.index("<b>eve</b>") < shown.index('"a"')
    assert "/run/1/client?name=%3Cb%3Eeve%3C%2Fb%3E" in shown
    assert "2 clients: 1 excluded, 1 in the model" in shown
    many = [row(str(i)) for i in range(1000)]
    assert "1 to 50 of 1,000" in text(listing(1, many, ("far",), "", {}))
    assert "951 to 1000 of 1,000" in text(listing(1, many, ("far",), "", {"from": "99999"}))
    assert "1 client: 1 in the model" in text(listing(1, many, ("far",), "731", {"from": "900"}))
    assert "highest watch" not in text(listing(1, many, (), "", {}))


@given(ANYTHING)
def test_where_the_rows_begin_may_be_anything(start):
    rows = [Glance(str(i), "in the model", "in the model", 0.1, {}, ()) for i in range(150)]
    assert " of 150" in text(listing(1, rows, ("far",), "", {"from": start}))


def test_a_clicked_cell_is_a_client():
    for cell, client in (([4.0, 3.0, 2.0], "c"), ({"0": 4.0, "1": 3.0, "2": 1}, "b"), ([4.0, 3.0, 9.0], None),
                         ([-1.0], None), ([float("nan")], None), ([float("inf")], None)):  # fmt: skip
        assert clicked_client({"points": [{"customdata": cell}]}, series()) == client
    assert clicked_client({"points": [{"y": "a"}]}, series()) == "a"
    assert clicked_client({"points": [{"y": "nobody"}]}, series()) is None


@given(ANYTHING)
def test_what_a_browser_sends_may_be_anything(click):
    assert all(isinstance(n, int) for n in runs._chosen(click))
    assert clicked_client(click, series()) in (None, *"abcd")
    assert clicked_client({"points": [click]}, series()) in (None, *"abcd")


def test_a_client_that_is_different(tmp_path, played):
    doubt = Note.of("left_out", "g", watches=("far",), words="it lies far out")
    with Ledger(tmp_path) as ledger:
        run = ledger.start("ward", "flower", {}, {})
        for record in played[:5]:
            ledger.append(run, replace(record, flagged=np.array([c == "g" for c in record.client_ids]), notes=(doubt,)))
    shown = text(sheet(Workspace(tmp_path).view(1), "g", dark=False))
    assert "Client g is different, harm not shown. If you know why it differs, run" in shown


def test_a_client_in_full(shared):
    shown = text(sheet(Workspace(shared).view(1), "h", dark=False))
    assert "Client h was excluded in round 2: " in shown
    assert "most in" in shown
    assert "Layers in round" in shown
    assert '"conv"' in shown
    assert "Rejected replies" not in shown
    shown = text(sheet(Workspace(shared).view(1), "b", dark=True))
    assert "Rejected replies" in shown
    assert "Round 4: " in shown
    assert "No watch has flagged this client" in shown


def test_a_client_that_helps_is_told_so_where_harm_was_measured(shared, weighed):
    view = Workspace(shared).view(1)
    assert "server's samples" not in text(sheet(view, "a", dark=False))
    view = replace(view, story=Story.of(weighed))
    for client, words in (("a", "helps the model: its updates lower"), ("g", "harms the model: its updates raise")):
        assert f"On the server's samples: {words} the loss by" in text(sheet(view, client, False))


def test_a_what_if_names_those_who_change_and_the_limit_of_the_rule(shared):
    settings = ("rule=k_sigma", "rule.k=3")  # of 8 values none lies more than sqrt(7) deviations above the mean

    def tried(run, chosen):
        return text(whatif.verdict(workspace, workspace.view(run), chosen))

    workspace = Workspace(shared)
    shown = tried(1, settings)
    assert "1 of 8 clients are treated differently" in shown
    assert "no longer" in shown
    assert "can flag at most" in shown
    assert "The same decisions" in tried(1, ())
    assert "no longer" in tried(1, ("policy=observe",))
    wrong = ("rule=gesd", "rule.alpha=7")
    assert "lpha lies in (0, 1); got 7" in tried(1, wrong)
    assert "cannot be replayed" in tried(2, ())


def test_the_same_what_if_is_decided_once(shared):
    workspace = Workspace(shared)
    whatif.verdict(workspace, workspace.view(1), ("rule=gesd",))
    before = whatif.judge_again.cache_info().misses
    whatif.verdict(workspace, workspace.view(1), ("rule=gesd",))
    assert whatif.judge_again.cache_info().misses == before


@given(
    st.dictionaries(st.sampled_from(["rule", "policy", "signal", "x"]), ANYTHING), st.dictionaries(st.text(), ANYTHING)
)
def test_only_known_parts_and_options_are_asked_for(wanted, values):
    wanted = {k: v for k, v in wanted.items() if isinstance(v, str | None)}
    assert set(whatif.chosen_parts(wanted, values)) <= {"rule", "policy"}


def test_options_at_their_default_stay_out_of_the_address():
    values = {"rule.alpha": 0.05, "rule.spend": "false", "rule.nonsense": 3, "history.kp": 1, "policy.limit": 4}
    kept = whatif.chosen_parts({"rule": "gesd", "history": "pid", "policy": ""}, values)
    assert kept == {"rule": "gesd", "rule.spend": "false", "history": "pid"}
    assert whatif.settings(kept) == ("rule=gesd", "rule.spend=false", "history=pid")


@pytest.mark.parametrize("part", whatif.PARTS)
def test_every_component_offers_its_options(part):
    for name in whatif.names(part):
        shown = text(whatif.options(part, name, {}))
        assert all(f'"name": "{option}"' in shown for option in whatif.parameters(whatif.lookup(part, name)))


def test_alarms_in_words(shared):
    seen = Workspace(shared).observations(2, "7")
    assert audit.sources(seen) == ["weights/cosine/"]
    shown = text(audit.alarms(seen))
    assert '"5"' in shown
    assert '"6"' not in shown
    assert "None in 4 rounds" in text(audit.alarms(seen[:3]))


def test_an_audit_opens_with_the_alarm_that_chance_explains_least(shared):
    seen = Workspace(shared).observations(2, "7")  # weights, cosine: an alarm with p = 0.001
    quiet = [replace(o, source="evaluation", p=1e-9, alarm=False) for o in seen]
    surer = [replace(o, source="outputs", p=o.p / 2) for o in seen]
    assert audit.surest([*quiet, *seen, *surer]) == "outputs/cosine/"
    assert audit.surest(quiet) == "evaluation/cosine/"
    assert audit.surest([]) is None
