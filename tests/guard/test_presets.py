"""The presets: PID-MADE against the paper's formulas, and what ``auto`` promises, on cheap synthetic updates."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import fedwarden as fw
from fedwarden.models.layout import Layout

D = 200


def names_of(n):
    return tuple(f"c{i:02d}" for i in range(n))


def play(warden, n, rows, rounds=30, counts=None):
    """Feed a warden with ``rows(t)`` of the clients it still asks for; the records of all rounds."""
    ids, records = names_of(n), []
    counts = np.full(n, 10.0) if counts is None else np.asarray(counts, dtype=float)
    for t in range(1, rounds + 1):
        keep = [i for i in range(n) if warden.asks(ids[i])]
        cohort = fw.Cohort(t, tuple(ids[i] for i in keep), fw.Updates.of(rows(t)[keep]), counts[keep])
        records.append(warden.step(cohort).record)
    return records


@pytest.mark.parametrize("weighted", [True, False])
def test_none_is_fedavg(weighted, cohort_of):
    x, counts = np.random.default_rng(0).normal(size=(4, 7)), [10, 20, 30, 40]
    warden = fw.Warden.preset("none", weighted=weighted)
    outcome = warden.step(cohort_of(x, counts=counts))
    share = np.array(counts) / 100 if weighted else np.full(4, 0.25)
    np.testing.assert_allclose(outcome.update, share @ x, atol=1e-12)
    assert (warden.watches, outcome.record.excluded) == ((), ())


def pid_made_by_hand(rounds, counts, kp, ki, kd, k, start, keep_sending):
    """Eq. 1 to 3 of the paper, client by client; yields who sent, D, u, tau, who is excluded, and the update."""
    n = len(counts)
    past = {i: [] for i in range(n)}
    excluded = set()
    for t, x in enumerate(rounds, start=1):
        sent = [i for i in range(n) if keep_sending or i not in excluded]
        good = [i for i in sent if i not in excluded]
        mu = sum(x[i] for i in good) / len(good)
        distance, score = {}, {}
        for i in sent:
            distance[i] = math.sqrt(sum((x[i] - mu) ** 2))
            score[i] = kp * distance[i]
            if past[i]:
                score[i] += ki * sum(past[i]) + kd * (distance[i] - past[i][-1])
            past[i].append(distance[i])
        mean = sum(score[i] for i in good) / len(good)
        sigma = math.sqrt(sum((score[i] - mean) ** 2 for i in good) / len(good))
        tau = mean + k * sigma
        if t >= start:
            excluded |= {i for i in good if score[i] > tau}
        rest = [i for i in sent if i not in excluded]
        update = sum(counts[i] * x[i] for i in rest) / sum(counts[i] for i in rest)
        yield sent, distance, score, tau, set(excluded), update


@pytest.mark.parametrize("keep_sending", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"k": 1.3, "start_round": 4}, {"kp": 0.7, "ki": 0.1, "kd": 0.9, "k": 1.6}], ids=["paper", "a", "b"]
)
@pytest.mark.parametrize("seed", range(3))
def test_pid_made_is_the_papers_formulas(options, keep_sending, seed):
    rng, n, d = np.random.default_rng(seed), 14, 9
    rounds = [rng.normal(size=(n, d)) * rng.uniform(0.5, 2.0, size=(n, 1)) for _ in range(12)]
    for x in rounds:
        x[3] += 4.0
    counts = rng.integers(50, 100, size=n).astype(float)
    given = {"kp": 1.0, "ki": 0.5, "kd": 0.05, "k": 2.33, "start_round": 2, **options}  # the paper's
    start = given.pop("start_round")
    warden, ids, found = fw.Warden.preset("pid_made", **options), names_of(n), set()
    by_hand = pid_made_by_hand(rounds, counts, start=start, keep_sending=keep_sending, **given)
    for t, (sent, distance, score, tau, excluded, update) in enumerate(by_hand, start=1):
        cohort = fw.Cohort(t, tuple(ids[i] for i in sent), fw.Updates.of(rounds[t - 1][sent]), counts[sent])
        assert keep_sending or all(warden.asks(ids[i]) == (i in sent) for i in range(n))
        outcome = warden.step(cohort)
        (watch,) = outcome.record.watches
        np.testing.assert_allclose(watch.signal, [distance[i] for i in sent], rtol=1e-9)
        np.testing.assert_allclose(watch.scores, [score[i] for i in sent], rtol=1e-9)
        assert watch.threshold == pytest.approx(tau, rel=1e-9)
        assert set(outcome.record.excluded) == {ids[i] for i in excluded}
        np.testing.assert_allclose(outcome.update, update, atol=1e-9)
        found = excluded
    assert 3 in found  # so that the loop above has excluded somebody


@pytest.mark.parametrize("n", [3, 4, 5, 10, pytest.param(50, marks=pytest.mark.slow)])
def test_auto_leaves_honest_clients_alone(n):
    for seed in range(8):
        rng, warden = np.random.default_rng(seed), fw.Warden.preset("auto")
        records = play(warden, n, lambda t, rng=rng: rng.normal(size=(n, D)) + rng.normal(size=D))
        assert all((r.weights > 0).all() and not r.flagged.any() for r in records)


@pytest.mark.parametrize("n", [4, 10])
def test_auto_allows_for_clients_that_differ(n):
    """Each client's updates have a length of their own, log-normal: two thirds within 22 % of the typical one."""
    wronged = 0
    for seed in range(20):
        rng, warden = np.random.default_rng(100 + seed), fw.Warden.preset("auto")
        length = np.exp(0.2 * rng.normal(size=(n, 1)))
        records = play(warden, n, lambda t, rng=rng, length=length: length * rng.normal(size=(n, D)))
        wronged += any(r.flagged.any() for r in records)
    assert wronged <= 3  # alpha is 0.05 a run: four or more of 20 have a probability of 1.6 %


def expected(n):
    """Clients in doubt that are in the model at once, on average."""
    return max(2, n / 10)


HOW = {
    "opposed": lambda rows, own: -rows,
    "elsewhere, together": lambda rows, own: rows - 1.0 + own[0],
    "elsewhere, each": lambda rows, own: rows - 1.0 + own,
    "long": lambda rows, own: 4.0 * rows,
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("n", "f"), [(4, 1), (5, 2), (10, 1), (10, 4), (11, 5), (50, 24)])
def test_auto_doubts_every_attacker_below_half_and_keeps_their_joint_weight_small(n, f, how):
    """Honest updates are 1 plus noise; evidence of distance takes three rounds at least, of opposition four."""
    for seed in range(3):
        rng, warden = np.random.default_rng(seed), fw.Warden.preset("auto", secret=seed)
        own = rng.choice([-1.0, 1.0], size=(f, D))

        def rows(t, rng=rng, own=own):
            x = 1.0 + 0.3 * rng.normal(size=(n, D))
            x[:f] = HOW[how](x[:f], own)
            return x

        records = play(warden, n, rows, rounds=14)
        assert all(r.excluded == () for r in records)
        assert all((r.weights[f:] > 0).all() for r in records), "no honest client is out"
        for r in records[5:]:
            assert r.flagged.tolist() == [True] * f + [False] * (n - f)
        inside = [np.count_nonzero(r.weights[:f]) for r in records[5:]]
        if n < 6:
            assert set(inside) == {f}, "among so few no client is left out"
        else:  # by coins: within 4.5 deviations of their mean number
            off = 4.5 * math.sqrt(expected(n) / len(inside))
            assert np.mean(inside) <= expected(n) + off


@pytest.mark.parametrize("n", [4, 5, 10, 11, 50])
def test_clients_in_doubt_move_the_model_together_by_a_bounded_length(n):
    """0.4 n median lengths, of few clients three; each client in good standing has three."""
    f = (n - 1) // 2
    rng, warden = np.random.default_rng(0), fw.Warden.preset("auto", secret=0)
    for t in range(1, 9):
        x = rng.normal(size=(n, D))
        x[:f] *= rng.uniform(20, 900, size=(f, 1))
        decision = warden.decide(fw.Cohort(t, names_of(n), fw.Updates.of(x), np.full(n, 10.0)))
        lengths = np.linalg.norm(x, axis=1) * decision.factors
        usual = np.linalg.norm(x[f:], axis=1)
        inside = decision.kept[:f]
        assert decision.judgement.doubted.tolist() == [True] * f + [False] * (n - f)
        assert (lengths[:f] * inside).sum() <= max(0.4 * n, 3.0) * usual.max() * (1 + 1e-9)
        assert lengths[:f].max() <= 16 * usual.max() * (1 + 1e-9)
        assert (decision.factors[f:] == 1).all()


@pytest.mark.parametrize("n", [4, 5, 6, 10, 50])
@pytest.mark.parametrize("factor", [30.0, 900.0, 1e4, 1e30])
def test_a_far_too_large_update_is_in_doubt_and_bounded_in_the_first_round(n, factor):
    """Beyond a thousand median lengths it is rejected; below, it counts as 16 at most."""
    x = np.random.default_rng(n).normal(size=(n, D))
    x[-1] *= factor
    for secret in range(6):
        warden = fw.Warden.preset("auto", secret=secret)
        outcome = warden.step(fw.Cohort(1, names_of(n), fw.Updates.of(x), np.full(n, 10.0)))
        assert (outcome.weights[:-1] > 0).all()
        assert outcome.record.excluded == ()
        usual = np.median(np.linalg.norm(x[:-1], axis=1))
        most = 0.0 if factor > 1000 else min(max(0.4 * n, 3.0), 16.0) * usual
        moved = np.linalg.norm(n * outcome.update.numpy() - x[:-1].sum(axis=0))
        if outcome.weights[-1]:
            assert moved <= 1.1 * most
            assert "on_trial" in {note.kind for note in outcome.record.notes}
        else:
            np.testing.assert_allclose(outcome.update, x[:-1].mean(axis=0), atol=1e-6)
            told = {r.client_id for r in outcome.record.rejected} | {
                c for note in outcome.record.notes if note.kind == "left_out" for c in note.clients
            }
            assert told == {names_of(n)[-1]}


@pytest.mark.parametrize("n", [6, 12])
def test_a_client_that_alone_has_its_data_stays_in_nine_rounds_of_ten(n):
    """Honest, four times as long as the others and in a direction of its own: the only owner of a class."""
    rng, warden = np.random.default_rng(1), fw.Warden.preset("auto", secret=3)
    own = rng.normal(size=D)

    def rows(t):
        x = rng.normal(size=(n, D)) + 1.0
        x[0] = 4 * own * math.sqrt(2) + rng.normal(size=D)
        return x

    records = play(warden, n, rows, rounds=300)
    assert all(r.excluded == () for r in records)
    inside = sum(r.weights[0] > 0 for r in records)
    assert 300 * 0.9 - 3 * math.sqrt(300 * 0.09) <= inside <= 300 * 0.9 + 3 * math.sqrt(300 * 0.09)
    assert all((r.weights[1:] > 0).all() for r in records)


def test_alike_leaves_clients_in_doubt_out_for_as_long_as_the_doubt_lasts():
    n, rng, warden = 10, np.random.default_rng(0), fw.Warden.preset("auto", alike=True)

    def rows(t):
        x = rng.normal(size=(n, D))
        x[0] *= 4.0 if t <= 8 else 1.0
        x[1] *= 1.8
        return x

    records = play(warden, n, rows, rounds=30)
    out = [not r.weights[0] for r in records]
    assert all(out[:8]), "an update of more than three median lengths is in doubt at once"
    assert not any(out[20:])
    assert all(r.excluded == () for r in records)
    found = warden.decide(fw.Cohort(31, names_of(n), fw.Updates.of(rows(31)), np.full(n, 10.0)))
    assert found.factors[1] == pytest.approx(1.5 / 1.8, rel=0.15)


@given(st.integers(4, 14), st.integers(0, 2**31), st.data())
@settings(max_examples=40)
def test_auto_excludes_nobody_for_good_without_labels_whatever_a_minority_sends(n, seed, data):
    """Nor does it leave an honest client unasked; what comes is finite."""
    f = data.draw(st.integers(1, (n - 1) // 2))
    rng, warden = np.random.default_rng(seed), fw.Warden.preset("auto", secret=seed)
    common = rng.normal(size=40)
    for t in range(1, 11):
        rows = common + rng.normal(size=(n, 40))
        how = data.draw(st.sampled_from(["turn", "far", "copy", "tiny", "idle", "nan", "inf", "one weight", "crowd"]))
        sent = {
            "turn": -3 * rows[:f],
            "far": 1e3 * rng.normal(size=(f, 40)),
            "copy": np.repeat(rows[-1:], f, axis=0),
            "tiny": 1e-9 * rows[:f],
            "idle": np.zeros((f, 40)),
            "nan": np.full((f, 40), np.nan),
            "inf": np.full((f, 40), np.inf),
            "one weight": np.eye(40)[rng.integers(0, 40, f)] * 9.0,
            "crowd": rows[-1] + 0.2 * rng.normal(size=(f, 40)),
        }[how]
        rows[:f] = sent
        outcome = warden.step(fw.Cohort(t, names_of(n), fw.Updates.of(rows), np.full(n, 10.0)))
        assert torch.isfinite(outcome.update).all()
        assert outcome.record.excluded == outcome.record.suspended == warden.excluded == ()
        assert all(warden.asks(client) for client in names_of(n))
        assert not {r.client_id for r in outcome.record.rejected} & set(names_of(n)[f:])


@pytest.mark.parametrize("claim", [2.0, 10.0, 1e9])
def test_a_claimed_count_changes_no_measurement(claim):
    """Honest clients move as far as they have data; the claimant's count is its own word."""
    n = 12
    rng, size = np.random.default_rng(0), np.linspace(1.0, 1.5, n)
    x = rng.normal(size=(n, 2000)) * size[:, None]
    counts = 100 * size

    def signals(counts):
        cohort = fw.Cohort(1, names_of(n), fw.Updates.of(x), counts)
        return [w.signal for w in fw.Warden.preset("auto", secret=0).step(cohort).record.watches]

    plain = signals(np.full(n, 100.0))
    counts[-1] = 100 * claim
    np.testing.assert_array_equal(plain, signals(counts))


@pytest.mark.parametrize("claim", [1.0, 2.0, 1e9])
def test_an_attacker_is_found_whatever_count_it_claims(claim):
    n, rng, warden = 10, np.random.default_rng(0), fw.Warden.preset("auto", secret=0)
    counts = np.linspace(100, 130, n)
    counts[0] = 100 * claim

    def rows(t):
        x = (1.0 + 0.3 * rng.normal(size=(n, D))) * np.linspace(1.0, 1.3, n)[:, None]
        x[0, ::2] -= 2.0  # at right angles to the others and as long, so that gathered evidence alone tells
        return x

    records = play(warden, n, rows, rounds=12, counts=counts)
    assert [r.flagged[0] for r in records[4:]] == [True] * 8
    assert not any(r.flagged[1:].any() for r in records)
    assert max(r.weights[0] for r in records) <= 1 / (n - 1) + 0.01  # counts are clipped


@pytest.mark.parametrize("factor", [1.0, 9.0])
def test_evidence_of_distance_takes_several_rounds_and_goes_again(factor):
    """Evidence grows by 1 a round at most and must exceed 2.5: round 3 is the first that can decide.

    An update of more than three median lengths is in doubt at once, for as long as it is so long.
    """
    rng, warden = np.random.default_rng(0), fw.Warden.preset("auto")

    def rows(t):
        x = 1.0 + 0.3 * rng.normal(size=(8, D))
        if t <= 5:
            x[0, ::2] -= 2.0
            x[0] *= factor
        return x

    records = play(warden, 8, rows, rounds=12)
    far, long = ([bool(r.watches[k].flagged[0]) for r in records] for k in (0, 2))
    assert far[:10] == [False] * 2 + [True] * 7 + [False]  # 5 points less half a point a round: below 2.5 in round 10
    assert long == [factor > 3] * 5 + [False] * 7
    assert [bool(r.flagged[0]) for r in records] == [a or b for a, b in zip(far, long, strict=True)]


@pytest.mark.parametrize("preset", ["none", "pid_made", "auto"])
@pytest.mark.parametrize("n", [1, 2])
def test_one_or_two_clients_are_served(preset, n):
    rng, warden = np.random.default_rng(0), fw.Warden.preset(preset)
    for record in play(warden, n, lambda t: rng.normal(size=(n, 5)), rounds=3):
        assert record.weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("preset", ["none", "pid_made", "auto"])
def test_equal_updates_are_not_suspicious(preset):
    warden = fw.Warden.preset(preset)
    records = play(warden, 6, lambda t: np.ones((6, 5)), rounds=5)
    assert warden.excluded == ()
    assert not any(r.flagged.any() for r in records)


def small_server(probe=True, labels=True):
    """A network of one hidden layer, and samples of the server's own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    x = torch.randn(40, 6)
    return fw.Server(model, x if probe else None, model(x).argmax(1) if labels else None)


def small_round(server, t, n=8, on=(), scale=0.05):
    """Honest clients move a little; those turned on have every hidden unit active, whatever they see."""
    layout = Layout.of(server.model)
    params = layout.flatten(server.model.state_dict())
    torch.manual_seed(t)
    rows = scale * (torch.randn(n, layout.d) + torch.randn(layout.d))
    for i in on:
        rows[i, 6 * 16 : 7 * 16] = 4.0
    return fw.Cohort(t, names_of(n), fw.Updates.of(rows), np.full(n, 10.0), params)


def much_to_learn():
    """A server whose samples the model answers wrongly, and of which every class has one."""
    server = small_server()
    labels = (server.labels + 1) % 3
    labels[:3] = torch.arange(3)
    return fw.Server(server.model, server.probe, labels)


def watches_of(warden):
    return [w.name for w in warden.watches]


PLAIN = ["distance", "opposition", "length", "lone weights"]


def test_auto_watches_representations_where_the_server_has_a_probe_and_harm_where_it_has_labels():
    bare, poor, some, full = (fw.Warden.preset("auto") for _ in range(4))
    poor.equip(small_server(probe=False))
    some.equip(small_server(labels=False))
    full.equip(small_server())
    assert watches_of(bare) == watches_of(poor) == PLAIN
    assert watches_of(some) == [*PLAIN, "representations"]
    assert watches_of(full) == [*PLAIN, "representations", "harm"]
    server = small_server()
    for warden in (bare, poor, some, full):
        record = warden.step(small_round(server, 1)).record
        assert [w.name for w in record.watches] == watches_of(warden)
    seen, harm = record.watches[-2:]
    assert seen.words == "its representations moved"
    assert list(seen.parts) != []
    assert harm.words == "the model is worse with it on the server's samples"


def taught_round(server, t, n=8, against=()):
    """Clients go down the gradient of the loss on the server's samples, each with noise; some go up."""
    layout = Layout.of(server.model)
    server.model.zero_grad()
    nn.functional.cross_entropy(server.model(server.probe), server.labels).backward()
    gradient = torch.cat([p.grad.reshape(-1) for p in server.model.parameters()])
    rng = torch.Generator().manual_seed(t)
    rows = torch.stack([gradient * (4.0 if i in against else -2.0) for i in range(n)])
    rows += 0.2 * torch.randn(n, layout.d, generator=rng)
    params = layout.flatten(server.model.state_dict())
    return fw.Cohort(t, names_of(n), fw.Updates.of(rows), np.full(n, 10.0), params)


def test_auto_excludes_for_good_what_does_harm_on_the_servers_samples_and_no_other_client():
    server = much_to_learn()
    warden = fw.Warden.preset("auto").equip(server)
    for t in range(1, 61):
        record = warden.step(taught_round(server, t, against=[2, 5])).record
    assert sorted(record.excluded) == ["c02", "c05"]
    assert not warden.asks("c02")
    assert warden.asks("c03")


def test_auto_with_a_probe_gathers_evidence_of_moved_representations():
    server = small_server()
    warden = fw.Warden.preset("auto").equip(server)
    for t in range(1, 7):
        record = warden.step(small_round(server, t, on=[3], scale=0.02)).record
        moved = next(w for w in record.watches if w.name == "representations")
        assert moved.signal.argmax() == 3
    assert moved.flagged[3]
    assert moved.flagged.sum() == 1
    assert "c03" in warden.memory.doubted
    assert warden.excluded == ()


def test_auto_with_a_probe_leaves_honest_clients_alone():
    server = small_server()
    warden = fw.Warden.preset("auto").equip(server)
    for t in range(1, 16):
        assert warden.step(small_round(server, t)).record.weights.min() > 0
    assert warden.excluded == ()


@pytest.mark.parametrize(
    ("probe", "labels", "more"),
    [(True, True, {"divergence", "probe_loss"}), (True, False, {"divergence"}), (False, False, set())],
)
def test_watch_measures_what_the_server_can(probe, labels, more):
    server = small_server(probe, labels)
    warden = fw.Warden.preset("watch").equip(server)
    base = {"relative_distance", "direction", "update_norm", "ensemble"}
    assert set(watches_of(warden)) == base | more
    record = warden.step(small_round(server, 1)).record
    parts = {w.name: set(w.parts) for w in record.watches}["ensemble"]
    assert parts == {"relative_distance", "direction"} | ({"divergence"} if probe else set())
    assert set(watches_of(fw.Warden.preset("watch"))) == base


@pytest.mark.parametrize("weighted", [True, False])
def test_watch_flags_and_never_changes_a_weight(weighted):
    server, seen = small_server(), set()
    warden = fw.Warden.preset("watch", weighted=weighted).equip(server)
    for t in range(1, 8):
        cohort = small_round(server, t, on=[3])
        counts = np.linspace(10, 30, 8)
        cohort = fw.Cohort(t, cohort.client_ids, cohort.updates, counts, cohort.params)
        outcome = warden.step(cohort)
        want = counts / counts.sum() if weighted else np.full(8, 1 / 8)
        np.testing.assert_allclose(outcome.weights, want)
        rows = torch.cat([block for _, _, block in cohort.updates.blocks()], dim=1)
        np.testing.assert_allclose(outcome.update, want @ rows.double().numpy(), atol=1e-6)
        seen |= {w.name for w in outcome.record.watches if w.flagged[3]}
        assert warden.excluded == outcome.record.excluded == ()
        assert all(warden.asks(c) for c in cohort.client_ids)
    assert {"divergence", "relative_distance", "probe_loss", "ensemble"} <= seen
