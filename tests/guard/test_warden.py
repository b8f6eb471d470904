"""The warden: decisions before aggregation, memory between rounds, and a record of everything."""

import json
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import pytest
import torch

import fedwarden as fw
from fedwarden.core.errors import ConfigError
from fedwarden.guard.judge import Watch, flags_of, judge, usual
from fedwarden.guard.limits import Admission
from fedwarden.guard.warden import Warden
from fedwarden.models.layout import Layout
from fedwarden.rules.robust import Offset
from fedwarden.store.story import Story

ROBUST = {"name": "robust_z", "limit": 6.0}


def honest(n, d=30, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def with_outliers(n=12, d=30, seed=0, outliers=(3,), strength=50.0):
    x = honest(n, d, seed)
    x[list(outliers)] += strength
    return x


ANY_SIZE = Admission(norm_ratio=None)


def watch(rule=ROBUST, history="raw", start_round=1, name="", action="exclude", **options):
    return Watch({"name": "centroid_distance", **options}, history, rule, start_round, name, action=action)


def flagged(outcome):
    return [c for c, f in zip(outcome.record.client_ids, outcome.record.flagged, strict=True) if f]


def same(a, b):
    """Two records, compared number for number; NaN equals NaN."""
    a, b = asdict(a), asdict(b)
    np.testing.assert_equal(a, b)


@pytest.mark.parametrize("policy", ["exclude", "quarantine"])
def test_who_is_flagged_in_a_round_is_not_in_the_update_of_that_round(policy, cohort_of):
    x = with_outliers()
    outcome = Warden([watch()], policy).step(cohort_of(x))
    assert flagged(outcome) == ["d"]
    np.testing.assert_allclose(outcome.update, np.delete(x, 3, axis=0).mean(axis=0), atol=1e-12)
    assert outcome.weights[3] == 0
    assert outcome.weights.sum() == pytest.approx(1.0)
    assert outcome.record.excluded == (("d",) if policy == "quarantine" else ())


def test_nobody_is_flagged_before_the_start_round(cohort_of):
    warden = Warden([watch(start_round=3)], "quarantine")
    outcomes = [warden.step(cohort_of(with_outliers(), round=t)) for t in (1, 2, 3)]
    assert [flagged(o) for o in outcomes] == [[], [], ["d"]]
    assert all(np.isfinite(o.record.watches[0].scores).all() for o in outcomes)
    assert warden.excluded == ("d",)


def test_the_level_is_spent_only_by_tests_that_count(cohort_of):
    warden = Warden([watch("gesd", start_round=3)])
    for t in range(1, 6):
        warden.step(cohort_of(honest(8, seed=t), round=t))
    assert warden.memory.tests == (3,)


@pytest.mark.parametrize(("policy", "out"), [("observe", False), ("down_weight", False), ("exclude", True)])
def test_a_client_in_doubt_is_recorded_as_flagged_whatever_the_policy_makes_of_it(policy, out, cohort_of):
    far = Watch("centroid_distance", rule=ROBUST, start_round=1, action="doubt")
    warden = Warden([far], policy)
    outcome = warden.step(cohort_of(with_outliers()))
    assert flagged(outcome) == ["d"]
    assert (outcome.weights[3] == 0) == out
    assert outcome.record.excluded == ()
    assert warden.memory.doubted == frozenset(), "a history that remembers nothing doubts for the round alone"
    told = str(Story.of([outcome.record]))
    what = "was skipped" if out else "was flagged"
    assert told == f"No client was excluded. 1 of 12 clients {what}: d in 1 of 1 round."


ALWAYS, NEVER = (lambda cohort: np.eye(len(cohort))[0] * 99.0), (lambda cohort: np.zeros(len(cohort)))


@pytest.mark.parametrize(
    ("combine", "signals", "caught"),
    [
        ("any", [ALWAYS, NEVER, NEVER], True),
        ("any", [NEVER, NEVER], False),
        ("all", [ALWAYS, ALWAYS], True),
        ("all", [ALWAYS, ALWAYS, NEVER], False),
        ("vote", [ALWAYS, ALWAYS, NEVER], True),
        ("vote", [ALWAYS, NEVER], False),
        ("vote", [ALWAYS, NEVER, NEVER], False),
    ],
)
def test_watches_are_combined(combine, signals, caught, cohort_of):
    watches = [Watch(s, rule=ROBUST, start_round=1, name=f"w{i}") for i, s in enumerate(signals)]
    outcome = Warden(watches, "exclude", combine=combine).step(cohort_of(honest(6)))
    assert flagged(outcome) == (["a"] if caught else [])
    assert [w.name for w in outcome.record.watches] == [f"w{i}" for i in range(len(signals))]


@pytest.mark.parametrize("large", [5.0, 1e200, np.inf, np.nan])
@pytest.mark.parametrize("trusted", [(True, True, True, True), (True, True, False, False)])
def test_whatever_a_score_is_the_others_are_judged_among_themselves(large, trusted):
    """Also one whose square is no number any more; what cannot be compared is flagged."""
    mask, scores = np.array(trusted), np.array([1.0, 1.5, 4.5, large])
    with np.errstate(over="ignore"):  # as a guard calls it
        flagged, threshold, _ = flags_of(Offset(limit=2.0), scores, mask, 1)
    assert threshold == 2.0 + np.median(scores[mask & np.isfinite(scores)])
    assert flagged.tolist() == [False, False, threshold < 4.5, not large <= threshold]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("rule", "caught"), [(ROBUST, ["f"]), ("k_sigma", [])])  # mean + k sigma is infinite
def test_scores_whose_squares_are_infinite_are_judged_without_a_warning(rule, caught, cohort_of):
    scores = np.array([1.0, 1.1, 0.9, 1.2, 1.05, 1e200])
    warden = Warden([Watch(lambda cohort: scores, rule=rule, start_round=1)], "exclude")
    assert flagged(warden.step(cohort_of(honest(6)))) == caught


def rounds(cohort_of, first, last, n=9):
    """Cohorts in which clients come and go, one turns bad in round 3, and another is broken once."""
    for t in range(first, last + 1):
        x = honest(n, seed=t)
        x[2] += 40.0 * (3 <= t <= 5)
        x[5, 0] = np.nan if t == 4 else x[5, 0]
        here = [i for i in range(n) if (i + t) % 5]
        yield cohort_of(x[here], ids=[f"client {i}" for i in here], counts=[10 + i for i in here], round=t)


def test_auto_continues_from_its_state_bit_for_bit_and_takes_its_secret_along():
    """Three of nine oppose the others, so that what is drawn at random matters from round 4 on."""

    def came(t):
        rows = 1.0 + np.random.default_rng(t).normal(size=(9, 60))
        rows[:3] *= -1
        return fw.Cohort(t, tuple("abcdefghi"), fw.Updates.of(rows), np.full(9, 10.0))

    whole, first, second, other = (Warden.preset("auto", secret=secret) for secret in (7, 7, 8, 8))
    want = [whole.step(came(t)) for t in range(1, 25)]
    for t in range(1, 9):
        first.step(came(t))
        other.step(came(t))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for t, a in zip(range(9, 25), want[8:], strict=True):
        b = second.step(came(t))
        assert torch.equal(a.update, b.update)
        same(a.record, b.record)
    assert json.dumps(second.state_dict()) == json.dumps(whole.state_dict())
    turns = [other.step(came(t)).weights[:3].tolist() for t in range(9, 25)]
    assert turns != [a.weights[:3].tolist() for a in want[8:]], "another secret draws otherwise"


def test_a_secret_is_drawn_where_none_is_given_and_belongs_to_the_run():
    assert len({Warden().guard.secret for _ in range(20)}) == 20
    warden = Warden(secret=3)
    warden.reset()
    assert warden.guard.secret == warden.but(quorum=2).guard.secret == 3


@pytest.mark.parametrize("aggregator", ["mean", "centered_clipping", "flanders", {"name": "krum", "f": 2}])
def test_what_is_foreseen_comes_true_and_is_not_remembered(aggregator, cohort_of):
    wardens = [Warden([watch()], policy="quarantine", aggregator=aggregator) for _ in range(2)]
    for t in (1, 2, 3, 4):
        cohort = cohort_of(with_outliers(seed=t), round=t)
        for other in (with_outliers(seed=t, outliers=(1, 2)), honest(12, seed=9 + t)):
            wardens[0].foresee(cohort_of(other, round=t))
        decision, foreseen = wardens[0].foresee(cohort)
        stepped = [warden.step(cohort) for warden in wardens]
        assert decision.unsuspected.tolist() == (~stepped[0].record.flagged).tolist()
        for outcome in (foreseen, *stepped):
            assert torch.equal(outcome.update, stepped[1].update)
            same(outcome.record, stepped[1].record)
    assert len(wardens[0].recent) == 4


def test_a_state_can_be_saved_whatever_integer_the_round_is(cohort_of):
    warden = Warden([watch()])
    warden.step(cohort_of(honest(5), round=np.int64(3)))
    json.dumps(warden.state_dict())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rule", ["gesd", "robust_z", {"name": "k_sigma", "k": 2.33}])
def test_an_attacker_with_huge_values_leaves_no_trace_in_the_update(rule, dtype, cohort_of):
    x = honest(12, d=500).astype(dtype)
    x[3] = 1e13
    outcome = Warden([watch(rule)], "exclude", admission=ANY_SIZE).step(cohort_of(x))
    assert flagged(outcome) == ["d"]
    np.testing.assert_allclose(outcome.update, np.delete(x, 3, axis=0).mean(axis=0), atol=1e-6)


@pytest.mark.parametrize("preset", fw.names("preset"))
def test_no_preset_lets_an_absurdly_long_update_in(preset, cohort_of):
    x = honest(12, d=500).astype(np.float32)
    x[3] = 1e13
    outcome = Warden.preset(preset).step(cohort_of(x))
    assert [r.client_id for r in outcome.record.rejected] == ["d"]
    assert "times as long as the median one; at most 1000 times is accepted" in str(outcome.record.rejected[0].reason)
    np.testing.assert_allclose(outcome.update, np.delete(x, 3, axis=0).mean(axis=0), atol=1e-6)


def test_the_record_is_aligned_with_the_cohort_as_it_came(cohort_of):
    x = with_outliers(8, outliers=[5])
    x[1, 4], x[6, 0] = np.nan, np.inf
    counts = [10, 20, 0, 10, 10, 10, 10, 30]
    believed = Admission(count_ratio=None, max_share=None)
    outcome = Warden([watch()], "quarantine", admission=believed).step(cohort_of(x, counts=counts, round=7))
    record, (seen,) = outcome.record, outcome.record.watches
    kept = [0, 3, 4, 5, 7]
    gone = [1, 2, 6]
    assert (record.round, record.client_ids) == (7, tuple("abcdefgh"))
    assert record.num_examples.tolist() == counts
    assert sorted(r.client_id for r in record.rejected) == ["b", "c", "g"]
    for values in (seen.signal, seen.scores):
        assert np.isnan(values[gone]).all()
        np.testing.assert_allclose(values[kept], np.linalg.norm(x[kept] - x[kept].mean(axis=0), axis=1))
    assert np.flatnonzero(seen.flagged).tolist() == np.flatnonzero(record.flagged).tolist() == [5]
    np.testing.assert_allclose(outcome.weights, np.array([10, 0, 0, 10, 10, 0, 0, 30]) / 60)
    np.testing.assert_allclose(outcome.update, outcome.weights[[0, 3, 4, 7]] @ x[[0, 3, 4, 7]], atol=1e-12)


class Told:
    """A signal that writes down what it is told, and of whom."""

    def __init__(self):
        self.told = []

    def __call__(self, cohort):
        self.told.append(cohort.client_ids)
        return np.zeros(len(cohort))


def test_a_signal_that_two_watches_share_measures_those_let_in_once(cohort_of):
    rows = honest(6)
    rows[2] = np.nan
    signal = Told()
    watches = [Watch(signal, "raw", "gesd", 1, name) for name in ("a", "b")]
    Warden(watches, policy="exclude", share_copies=True).step(cohort_of(rows))
    assert signal.told == [tuple("abdef")]


def test_rejected_clients_are_not_remembered(cohort_of):
    x = honest(5)
    x[2] = np.nan
    warden = Warden([watch(history="pid")])
    warden.step(cohort_of(x))
    assert sorted(warden.memory.histories[0]) == ["a", "b", "d", "e"]


def test_when_everybody_is_excluded_the_model_is_kept(cohort_of):
    everyone = lambda scores, test: fw.Verdict(np.ones(len(scores), bool), -1.0)  # noqa: E731
    warden = Warden([watch(everyone)], "quarantine")
    for t in (1, 2):
        outcome = warden.step(cohort_of(honest(3), round=t))
        assert not outcome.update.any()
        assert not outcome.weights.any()
        assert fw.Note.of("all_excluded", many=3) in outcome.record.notes


def test_an_aggregator_that_cannot_combine_keeps_the_model_and_says_so(cohort_of):
    class Picky:
        def init(self):
            return {"calls": 1}

        def step(self, state, cohort, weights):
            raise ValueError("picky needs n >= 7 clients; got n=3")

    warden = Warden(aggregator=Picky())
    outcome = warden.step(cohort_of(honest(3)))
    assert not outcome.update.any()
    assert any("picky needs n >= 7" in str(n) and "the model is kept" in str(n) for n in outcome.record.notes)
    assert warden.state_dict()["aggregator"] == {"calls": 1}


def test_where_an_aggregator_gives_no_weights_the_policys_are_recorded(cohort_of):
    class Middle:
        def init(self):
            return {}

        def step(self, state, cohort, weights):
            return {"rounds": state.get("rounds", 0) + 1}, fw.Aggregate(torch.ones(cohort.updates.d))

    warden = Warden([watch()], "exclude", Middle())
    outcome = warden.step(cohort_of(with_outliers()))
    assert outcome.weights.tolist() == [float(i != 3) for i in range(12)]
    assert warden.state_dict()["aggregator"] == {"rounds": 1}


def test_an_empty_round(cohort_of):
    warden = Warden([watch(history="pid")], "quarantine")
    warden.step(cohort_of(honest(5)))
    before = warden.state_dict()
    outcome = warden.step(fw.Cohort(2, (), fw.Updates.empty(30), np.zeros(0)))
    assert outcome.update.tolist() == [0.0] * 30
    assert list(map(str, outcome.record.notes)) == ["no usable reply (0 rejected); the model is kept"]
    assert warden.state_dict() == before


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda scores, test: scores > 3.0, "a rule returns a fedwarden.Verdict; got array"),
        (lambda scores, test: fw.Verdict(scores > 3.0, 3.0, True), "is a sentence, a Note or None; got True"),
    ],
)
def test_a_rule_that_returns_something_else_is_told_what_was_expected(made, words, cohort_of):
    warden = fw.Warden([fw.Watch("centroid_distance", rule=made, name="far")])
    with pytest.raises(fw.ConfigError, match=words):
        warden.step(cohort_of(np.eye(5)))


def test_warnings_of_a_rule_are_noted(cohort_of):
    outcome = Warden([watch({"name": "k_sigma", "k": 2.33})]).step(cohort_of(with_outliers(outliers=[0, 1, 2])))
    assert not flagged(outcome)
    assert any(
        str(n).startswith("centroid_distance: mean + 2.33 sigma can flag at most 1 of 12") for n in outcome.record.notes
    )


def judged(guard, memory, round, client_ids, signals):
    """A round of clients of which none copies another, judged by these signals."""
    leaders = np.arange(len(client_ids))
    trusted = usual(memory, client_ids, leaders)
    return judge(guard, memory, round, client_ids, leaders, trusted, [fw.Reading(s) for s in signals])


def hungry(needs):
    """A signal that takes something from the server, and says which server it has."""

    @dataclass(frozen=True)
    class Hungry:
        server: fw.Server | None = field(default=None, compare=False)

        def equip(self, server):
            if getattr(server, needs) is None:
                raise ConfigError(f"this signal needs {needs}")
            return replace(self, server=server)

        def __call__(self, cohort):
            assert self.server is not None
            return getattr(self.server, needs)[: len(cohort)].double().numpy()

    return Hungry()


PROBE = torch.tensor([0.0, 0.1, 0.0, 0.1, 0.0, 50.0])


def calm_watch():
    return Watch(NEVER, rule=ROBUST, start_round=1, name="calm")


def optional_watch(needs="probe", name="fed"):
    return Watch(hungry(needs), rule=ROBUST, start_round=1, name=name, optional=True)


def test_an_optional_watch_waits_for_its_server(cohort_of):
    warden = Warden([calm_watch(), optional_watch()], "exclude")
    assert ([w.name for w in warden.watches], [w.name for w in warden.waiting]) == (["calm"], ["fed"])
    outcome = warden.step(cohort_of(honest(6)))
    assert [w.name for w in outcome.record.watches] == ["calm"]
    assert flagged(outcome) == []
    assert warden.equip(fw.Server(probe=PROBE)) is warden
    assert ([w.name for w in warden.watches], warden.waiting) == (["calm", "fed"], ())
    assert not any(w.optional for w in warden.watches)
    outcome = warden.step(cohort_of(honest(6)))
    assert [w.name for w in outcome.record.watches] == ["calm", "fed"]
    assert flagged(outcome) == ["f"]
    assert outcome.weights[5] == 0


def test_a_watch_that_is_not_optional_must_have_what_it_needs():
    needy = Warden([Watch(hungry("labels"), rule=ROBUST, name="labelled")])
    with pytest.raises(ConfigError, match="this signal needs labels"):
        needy.equip(fw.Server(probe=PROBE))
    assert [w.name for w in needy.equip(fw.Server(labels=PROBE)).watches] == ["labelled"]


def test_a_warden_is_equipped_before_its_first_round(cohort_of):
    """What it remembered belongs to other watches, so that it begins again."""
    warden = Warden([watch(history="pid"), optional_watch()], "quarantine")
    warden.step(cohort_of(with_outliers(6)))
    assert warden.excluded == ("d",)
    warden.equip(fw.Server(probe=PROBE))
    assert warden.excluded == ()
    assert (len(warden.memory.histories), warden.memory.tests) == (2, (0, 0))


def test_optional_watches_are_included_by_name_to_judge_what_was_recorded():
    warden = Warden([calm_watch(), optional_watch(), optional_watch("labels", "labelled")], "exclude")
    assert warden.include(["labelled", "unknown"]) is warden
    assert ([w.name for w in warden.watches], warden.waiting) == (["calm", "labelled"], ())
    assert len(warden.memory.histories) == 2
    recorded = [np.zeros(6), PROBE.double().numpy()]
    _, found = judged(warden.guard, warden.memory, 1, tuple("abcdef"), recorded)
    assert found.flagged.tolist() == [False] * 5 + [True]


def test_a_warden_shows_the_rounds_it_judged(cohort_of):
    warden = fw.Warden(
        [fw.Watch("centroid_distance", "raw", {"name": "robust_z", "limit": 6.0}, name="far")], "quarantine"
    )
    assert "none yet" in warden._repr_html_()
    assert "recorded" in warden.plot().layout.annotations[0].text
    ids = ["a", "b", "c", "d", "<b>eve</b>"]
    rows = np.random.default_rng(0).normal(size=(5, 3))
    rows[4] += 99.0
    for t in (1, 2, 3):
        live = [i for i, c in enumerate(ids) if warden.asks(c)]
        warden.step(cohort_of(rows[live], ids=[ids[i] for i in live], round=t))
    assert warden.series.rounds.tolist() == [1, 2, 3]
    assert "&lt;b&gt;eve&lt;/b&gt;" in warden._repr_html_()
    assert "<b>" not in warden._repr_html_()
    assert warden.plot().layout.title.text.startswith("far")
    assert warden.plot(client="a").layout.title.text == "Client a"


def test_what_a_warden_shows_is_bounded_and_no_part_of_its_state(cohort_of):
    warden = fw.Warden()
    for t in range(1, 131):
        warden.step(cohort_of([[1.0], [2.0]], round=t))
    assert len(warden.recent) == 100
    other = fw.Warden()
    other.load_state_dict(warden.state_dict())
    assert not other.recent
    warden.step(cohort_of([[1.0], [2.0]], round=1))  # another run
    assert warden.series.rounds.tolist() == [1]


@pytest.mark.parametrize("aggregator", ["mean", "krum", "fltrust", "sign", "norm_clipping", "foolsgold", "median"])
@pytest.mark.parametrize("buffers", ["median", "mean"])
def test_statistics_that_nobody_measures_cannot_poison_the_model(buffers, aggregator):
    """Honest weights and running variances far below zero: under a plain mean the model would give no numbers."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    layout = Layout.of(model)
    params = layout.flatten(model.state_dict())
    rows = params + 0.05 * torch.randn(8, layout.d, generator=torch.Generator().manual_seed(0))
    variances = [
        n.endswith("running_var") for n, size in zip(layout.names, layout.sizes, strict=True) for _ in range(size)
    ]
    rows[5, torch.tensor(variances)] = -60.0
    warden = fw.Warden(aggregator=aggregator, admission=Admission(buffers=buffers))
    warden.equip(fw.Server(root=lambda params, t: 0.05 * torch.ones_like(params)))
    cohort = fw.Cohort(1, tuple("abcdefgh"), fw.Updates.of(rows, params, layout.measured), np.full(8, 10.0), params)
    outcome = warden.step(cohort)
    made = layout.unflatten(params + outcome.update)["1.running_var"]
    if buffers == "median":
        assert float(made.min()) > 0.5
        assert any("f" in note.clients and "whose median is used" in str(note) for note in outcome.record.notes)
    elif aggregator == "mean":
        assert float(made.max()) < 0


@pytest.mark.parametrize(
    ("n", "signal", "mapped"), [(5, "twins", True), (5, "update_norm", False), (1001, "twins", False)]
)
def test_a_map_is_recorded_where_it_costs_no_read_and_few_enough_are_on_it(cohort_of, n, signal, mapped):
    rows = np.random.default_rng(0).normal(size=(n, 3))
    ids = [str(i) for i in range(n)]
    record = fw.Warden([fw.Watch(signal)], "observe").step(cohort_of(rows, ids=ids)).record
    assert ("map/x" in record.reported) == mapped
    if mapped:
        assert all(len(record.reported[name]) == n for name in ("map/x", "map/y"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"histories": None}, "the state has no histories"),
        ({"tests": [1]}, "this warden has 4 watches; the state has 1"),
        ({"excluded": ["a"]}, r"excluded is a table by client.*; got \['a'\]"),
        ({"secret": None}, "the state has no secret"),
        ({"doubted": None}, "the state has no doubted"),
    ],
)
def test_a_state_that_is_none_is_refused_as_it_is_loaded(change, told):
    state = {**fw.Warden.preset("auto").state_dict(), **change}
    with pytest.raises(ConfigError, match=told):
        fw.Warden.preset("auto").load_state_dict({k: v for k, v in state.items() if v is not None})


@pytest.mark.parametrize("preset", ["auto", "pid_made"])
def test_a_value_that_is_no_number_is_not_remembered(preset):
    """A model that gives no numbers once flags its client in that round; its evidence was NaN for ever."""

    def values(t):
        return np.array([0.0, 0.1, 0.2, 0.1, np.nan if t == 2 else 0.1])

    whole = fw.Warden.preset(preset).guard
    guard = replace(whole, watches=whole.watches[:1])
    memory = guard.blank()
    for t in range(1, 6):
        memory, judgement = judged(guard, memory, t, tuple("abcde"), [values(t)])
        assert np.isnan(judgement.watches[0].scores[4]) == (t == 2)
        assert judgement.watches[0].flagged[4] == (t == 2)


@pytest.mark.parametrize("preset", ["pid-made", "watch", "none"])
def test_identical_updates_that_share_no_vote_are_named_and_change_nothing(cohort_of, preset):
    """Signs are as long as each other without being the same, and so is an update that is reversed."""
    rows = np.random.default_rng(0).choice([-1.0, 1.0], size=(9, 400)).astype(np.float32)
    rows[[4, 7]], rows[8] = rows[1], -rows[0]
    with_copies, without = (
        Warden.preset(preset).step(cohort_of(r)) for r in (rows, rows + 1e-3 * np.arange(9, dtype=np.float32)[:, None])
    )
    named = [note.clients for note in with_copies.record.notes if note.kind == "copies_apart"]
    assert named == [("b", "e", "h")]
    assert not any(note.kind == "copies_apart" for note in without.record.notes)
    assert np.array_equal(with_copies.record.weights, without.record.weights)
