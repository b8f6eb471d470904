"""A planned change: who is asked, what it is compared with, and verdicts on planted evidence."""

import json

import numpy as np
import pytest

from fedwarden.audit.answer import CHANGE, FRESH, STILL, answer_of
from fedwarden.audit.verdict import Sight
from fedwarden.core.errors import ConfigError
from fedwarden.core.types import Observation
from fedwarden.sim.branches import Branch
from fedwarden.sim.change_audit import Trace, answer, exchanged, kept, load_plan, sources_of

SHIFT, NEW = Sight("shows", "shows"), Sight("does not show", "shows")
NOTHING, UNKNOWN = Sight("does not show", "does not show"), Sight("cannot tell", "cannot tell")
TOML = """
rounds = 7
[data]
clients = 3
reserve = 700
partition = {name = "parity", size = 60}
[model]
name = "mlp"
hidden = [8]
[train]
optimizer = "adam"
lr = 0.005
group = 1
[guard]
preset = "none"
[audit]
client = 1
change = {name = "label_shift", shares = {8 = 0.5}}
start = 6
seeds = 4
probe = 30
"""


@pytest.fixture
def plan(tmp_path):
    def made(*settings):
        (tmp_path / "plan.toml").write_text(TOML)
        return load_plan(tmp_path / "plan.toml", settings)

    return made


def test_all_but_the_planned_client_look_on(plan):
    assert plan().observers == ("0", "2")
    assert plan("audit.client=0").observers == ("1", "2")
    assert plan().scenario.train.workers == 1


@pytest.mark.parametrize(
    ("change", "share"),
    [
        ("{name = 'label_shift', shares = {1 = 0.0, 3 = 0.0, 5 = 0.0, 7 = 0.0, 9 = 0.0}}", 0.5),
        ("{name = 'fresh_samples', exchange = 0.25}", 0.25),
        ("{name = 'label_flip', fraction = 0.5}", 0.5),
    ],
)
def test_how_many_samples_a_change_touches(plan, change, share):
    assert exchanged(plan(f"audit.change={change}", "audit.ramp=3")) == pytest.approx(share)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("audit.client=3", "audit.client: there is no client 3; known: 0, 1, 2"),
        ("audit.client=one", "audit.client: there is no client 'one'; known: 0, 1, 2"),
        ("audit.start=9", "audit.start = 9 lies after the last round; rounds = 7"),
        ("audit.change=gaussian", "'gaussian' does not change data"),
        ("audit.change=label_shfit", "did you mean 'label_shift'"),
        ("audit.chnage=label_shift", "unknown key 'chnage'.*'change'"),
        ("audit.seeds=2", "audit.seeds|seeds: .* greater than or equal to 4"),
    ],
)
def test_what_cannot_be_planned_is_refused(plan, setting, message):
    with pytest.raises(ConfigError, match=message):
        plan(setting)


def test_a_file_without_a_plan_is_refused(tmp_path):
    (tmp_path / "run.toml").write_text("rounds = 3")
    with pytest.raises(ConfigError, match=r"no table \[audit\]"):
        load_plan(tmp_path / "run.toml")


def test_a_change_that_changes_nothing_is_refused(plan):
    with pytest.raises(ConfigError, match="changes nothing of client 1's data"):
        answer(plan("audit.change={name = 'label_flip', fraction = 0.0}"))


def test_too_small_a_reserve_is_named(plan):
    with pytest.raises(ConfigError, match=r"raise data\.reserve"):
        answer(plan("data.reserve=100"))


def branch(rng, size, client_sees=True):
    """Two rounds of two sources, as kept: one that moves by ``size`` for client 0 alone, and one that is noise."""

    def seen(client):
        moved = size if client == "0" else 0.0
        for t in (6, 7):
            parts = {"0": 9.0 * (size > 0), "1": 0.0}
            yield Observation(t, "outputs", "mean_logits", "", 1.0, 1.0, moved + rng.normal(0, 0.1), 0.1, False, parts)
            yield Observation(t, "weights", "cosine", "", 1 + rng.normal(0, 0.1), 1.0, 0.0, 0.1, False)

    return kept(Branch({client: list(seen(client)) for client in ("0", "2")}, {7: 0.9}), 7)


def test_verdicts_follow_what_was_planted(plan):
    rng = np.random.default_rng(0)
    runs = [{STILL: branch(rng, 0.0), CHANGE: branch(rng, 5.0), FRESH: branch(rng, 0.0)} for _ in range(10)]
    logits, weights = sources_of(runs, plan())
    assert (logits.metric, weights.metric) == ("mean_logits", "cosine")
    assert logits.sees == {"0": SHIFT, "2": NOTHING}
    assert logits.from_round == {"0": 6, "2": None}
    assert logits.moved == {"0": 9.0}
    assert set(weights.sees.values()) == {NOTHING}
    assert logits.against["0"][FRESH].auroc == 1.0


@pytest.mark.parametrize(("seeds", "told"), [(3, "cannot tell"), (4, "shows")])
def test_perfect_separation_shows_only_where_so_many_seeds_can(plan, seeds, told):
    rng = np.random.default_rng(0)
    runs = [{STILL: branch(rng, 0.0), CHANGE: branch(rng, 5.0), FRESH: branch(rng, 0.0)} for _ in range(seeds)]
    found = sources_of(runs, plan())  # two sources: .05 / 2 lies between 1 / (6 choose 3) and 1 / (8 choose 4)
    assert found[0].against["0"][FRESH].auroc == 1.0
    assert found[0].sees["0"] == Sight(told, told)
    assert (found[0].sees["2"] == UNKNOWN) is (told == "cannot tell")


def test_new_samples_are_not_taken_for_the_change(plan):
    rng = np.random.default_rng(0)
    runs = [{STILL: branch(rng, 0.0), CHANGE: branch(rng, 5.0), FRESH: branch(rng, 5.0)} for _ in range(10)]
    logits, _ = sources_of(runs, plan())
    assert logits.sees == {"0": NEW, "2": NOTHING}
    assert logits.from_round == {"0": None, "2": None}


def test_a_source_without_numbers_is_left_out(plan):
    rng = np.random.default_rng(0)
    runs = [{STILL: branch(rng, 0.0), CHANGE: branch(rng, 5.0), FRESH: branch(rng, 0.0)} for _ in range(4)]
    runs[2][STILL].seen["2"]["weights/cosine"] = Trace((None, None), {})
    assert [s.metric for s in sources_of(runs, plan())] == ["mean_logits"]


def test_a_small_federation_is_answered_for(plan):
    rounds = []
    found = answer(plan(), lambda *r: rounds.append(r))
    assert len(rounds) == 4 * (5 + 3 * 2)  # seeds x (rounds before the change, then three branches of two)
    assert all(set(s.against) == {"0", "2"} and len(s.against["0"]) == 2 for s in found.sources)
    assert answer_of(json.loads(json.dumps(found.table()))) == found
    assert 0 < found.accuracy[STILL] <= 1
