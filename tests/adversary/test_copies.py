"""Nobody is excluded because of what somebody else sent."""

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.updates.gram import copy_leaders

D = 400


def honest(n, seed, pull=1.0):
    """Updates that share a direction and have noise of their own."""
    rng = np.random.default_rng(seed)
    common = np.random.default_rng(999).normal(size=D)
    return pull * common + rng.normal(size=(n, D))


def cohort(rows, t=1, keep=None, counts=None):
    """The clients that are kept, by their places, with ten examples each where no counts are given."""
    keep = range(len(rows)) if keep is None else keep
    counts = np.full(len(keep), 10.0) if counts is None else counts
    return fw.Cohort(t, tuple(map(str, keep)), fw.Updates.of(rows[keep] if len(keep) < len(rows) else rows), counts)


def play(n, forge, rounds=8, warden=None, seed=0):
    """The warden and its records after some rounds; ``forge(t, rows)`` rewrites the rows of a round."""
    warden = warden or fw.Warden.preset("auto", secret=seed)
    records = []
    for t in range(1, rounds + 1):
        rows = honest(n, 1000 * seed + t)
        forge(t, rows)
        keep = [i for i in range(n) if warden.asks(str(i))]
        records.append(warden.step(cohort(rows, t, keep)).record)
    return warden, records


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [3, 4, 5, 8, 12])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_copy_takes_nobody_out(n, noise, seed):
    """One client sends what another one sends in the same round, exactly or nearly."""
    rng, noise = np.random.default_rng(seed), noise if n > 3 else 0.0

    def copy(t, rows):
        rows[0] = rows[1] + noise * rng.normal(size=D)

    warden, records = play(n, copy, seed=seed)
    assert warden.excluded == ()
    votes = 1 / (n - 1) if n > 3 else 2 / 3  # two of three have an honest client among them: its update may count
    assert all(r.weights[:2].sum() == pytest.approx(votes) for r in records)
    assert all("sent identical updates: they" in " ".join(map(str, r.notes)) for r in records)


@pytest.mark.parametrize("seed", range(6))
def test_two_of_five_that_copy_one_honest_client_frame_nobody(seed):
    """They copied, got the other two excluded, then reversed their updates: only attackers were left."""

    def copy_then_reverse(t, rows):
        rows[:2] = rows[2] if t <= 3 else -rows[:2]

    warden, records = play(5, copy_then_reverse, rounds=16, seed=seed)
    assert warden.excluded == ()
    assert not any(r.flagged.any() for r in records[:3])
    assert all("too few to judge any client" in " ".join(map(str, r.notes)) for r in records[:3])
    assert all((r.weights[2:] > 0).all() for r in records), "no honest client is out"


@pytest.mark.parametrize("near", [0.03, 0.1, 0.3, 0.5])
@pytest.mark.parametrize(("n", "f"), [(5, 2), (7, 3), (9, 4), (11, 5)])
def test_a_minority_that_gathers_around_an_honest_client_excludes_nobody(n, f, near):
    """With it they are a bare majority that is alike; then they turn on the model."""
    rng = np.random.default_rng(0)

    def gather_then_reverse(t, rows):
        rows[:f] = rows[f] + near * rng.normal(size=(f, D)) if t <= 8 else -rows[:f]

    warden, records = play(n, gather_then_reverse, rounds=24)
    assert warden.excluded == ()
    assert all((r.weights[f:] > 0).all() for r in records[8:]), "what was gathered against the others does not last"
    assert n < 6 or np.mean([np.count_nonzero(r.weights[:f]) for r in records[12:]]) <= 3  # two on average, by coins


@pytest.mark.parametrize(("n", "f"), [(5, 2), (7, 3), (9, 4), (11, 5)])
@pytest.mark.parametrize("seed", range(2))
def test_victims_are_not_framed_one_at_a_time(n, f, seed):
    """The attackers surround one honest client and turn away from another, whose other clients are half attackers."""
    common, rng = np.random.default_rng(999).normal(size=D), np.random.default_rng(seed)

    def turn_away(t, rows):
        own = rows - common
        middle = common + 0.8 * own[f] - 0.8 * own[n - 1]
        k = n // 2 + 1
        far = np.mean(np.linalg.norm(rows[f + 1 : n - 1] - middle, axis=1)) / np.sqrt(1 + 1 / k)
        noise = rng.normal(size=(f, D))
        noise -= noise.mean(axis=0)
        noise *= far / 1.6 * np.sqrt(1 - 1 / k) / np.linalg.norm(noise, axis=1, keepdims=True)
        rows[:f] = middle + noise - (rows[f] - middle) / f

    warden, records = play(n, turn_away, rounds=24, seed=seed)
    assert warden.excluded == ()
    out = np.mean([r.weights[f:] == 0 for r in records])
    assert out < 0.25


@pytest.mark.parametrize("near", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("n", "f", "rounds"), [(5, 2, 1), (9, 4, 1), (9, 4, 3), (10, 4, 3), (5, 1, 3)])
def test_who_was_surrounded_once_is_not_left_out_for_long(n, f, rounds, near):
    """Attackers around a client make it look closer than ever; later its usual distance must not be a leap."""
    rng = np.random.default_rng(0)

    def surround(t, rows):
        if 4 < t <= 4 + rounds:
            noise = near * rng.normal(size=(f, D))
            rows[:f] = rows[f] + noise - (noise.mean(axis=0) if f > 1 else 0.0)

    _, records = play(n, surround, rounds=44)
    out = [r.weights[r.client_ids.index(str(f))] == 0 for r in records[4 + rounds :]]
    assert np.mean(out) < 0.2


@pytest.mark.parametrize("alike", [0.05, 0.1, 0.3])
@pytest.mark.parametrize(("n", "group", "idle"), [(10, 5, 1), (9, 5, 0), (11, 6, 0), (5, 3, 0)])
def test_a_bare_majority_that_is_more_alike_than_the_rest_excludes_nobody(n, group, idle, alike):
    """Nor does one that lets a group of half tip by staying away."""
    rng = np.random.default_rng(1)

    def cluster(t, rows):
        rows[:group] = rows[0] + alike * rng.normal(size=(group, D))
        rows[n - idle :] = 0.0

    warden, _ = play(n, cluster, rounds=12)
    assert warden.excluded == ()
    assert warden.memory.doubted == frozenset()


@pytest.mark.parametrize(("n", "f"), [(9, 4), (10, 4), (7, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_tiny_updates_of_a_minority_exclude_nobody(n, f, seed):
    rng = np.random.default_rng(seed)

    def tiny(t, rows):
        rows *= np.exp(0.3 * rng.normal(size=(n, 1)))
        rows[:f] *= 1e-3

    warden, records = play(n, tiny, rounds=40, seed=seed)
    assert warden.excluded == ()
    assert np.mean([r.weights[f:] == 0 for r in records]) < 0.05  # some update is three times as long by chance


@pytest.mark.parametrize(("n", "f"), [(5, 2), (7, 3), (9, 4)])
def test_honest_clients_that_are_the_same_do_not_lose_their_votes_to_a_minority(n, f):
    """A bare majority that is alike to 0.001 may be copies of one client: it is judged as one, and counts in full."""
    common = np.random.default_rng(0).normal(size=D)
    rows = common + 1e-4 * np.random.default_rng(1).normal(size=(n, D))
    rows[:f] = -30 * np.random.default_rng(2).normal(size=(f, D))
    outcome = fw.Warden.preset("auto").step(cohort(rows))
    assert outcome.weights[f:].sum() >= (n - f) / n - 1e-9
    assert np.linalg.norm(outcome.update - common) < 2 * np.linalg.norm(common)


@pytest.mark.parametrize(("n", "f"), [(9, 4), (10, 4), (10, 3)])
@pytest.mark.parametrize("seed", range(5))
def test_tiny_updates_of_a_minority_do_not_shorten_the_others_to_nothing(n, f, seed):
    rng = np.random.default_rng(seed)
    rows = honest(n, seed) * np.exp(0.3 * rng.normal(size=(n, 1)))
    rows[:f] *= 1e-3
    outcome = fw.Warden.preset("auto").step(cohort(rows))
    fair = np.linalg.norm(rows[f:].mean(axis=0))
    assert np.linalg.norm(outcome.update) > 0.2 * fair


@pytest.mark.parametrize("n", [1, 2, 3])
def test_too_few_clients_exclude_nobody_and_say_so(n):
    def far(t, rows):
        rows[0] *= -9

    warden, records = play(n, far)
    assert warden.excluded == ()
    assert all("too few to judge any client; expected 4" in " ".join(map(str, r.notes)) for r in records)


def test_a_long_update_among_too_few_is_shortened():
    rows = honest(3, 1)
    rows[0] *= -30
    outcome = fw.Warden.preset("auto").step(cohort(rows))
    lengths = np.linalg.norm(rows, axis=1)
    limit = 3.0 * np.median(lengths)
    want = (rows * np.minimum(1, limit / lengths)[:, None]).mean(axis=0)
    np.testing.assert_allclose(outcome.update, want, atol=1e-6)


def test_who_copies_an_excluded_client_or_is_copied_by_one_keeps_its_place():
    """Under parole an excluded client goes on sending: its copies of an honest one do not count against that one."""
    warden = fw.Warden(
        [fw.Watch("relative_distance", "raw", {"name": "offset", "limit": 1.0}, start_round=1)],
        {"name": "quarantine", "parole": 50}, share_copies=True, quorum=4,
    )  # fmt: skip

    def attack_then_copy(t, rows):
        rows[0] = -20 * rows[0] if t == 1 else rows[1]

    warden, records = play(8, attack_then_copy, warden=warden)
    assert warden.excluded == ("0",)
    assert all(r.weights[1] == pytest.approx(1 / 7) for r in records)


@pytest.mark.parametrize("far", [1.0, 30.0, 1e6])
@pytest.mark.parametrize(("n", "f"), [(3, 1), (4, 1), (5, 2), (9, 4), (10, 4)])
@pytest.mark.parametrize("spread", [0.0, 1e-4, 0.01, 0.1, 1.0])
def test_attackers_far_away_do_not_make_honest_clients_look_like_copies(n, f, far, spread):
    """However much the honest ones agree: if they shared a vote, a minority would own the model."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=D) + spread * rng.normal(size=(n, D))
    rows[:f] = -far * rng.normal(size=(f, D))
    squares = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    leaders = copy_leaders(squares, np.linalg.norm(rows, axis=1), np.ones(n, bool))
    alone = 2 * (n - f) > n + 1 or spread >= 0.01  # a bare majority that is the same to 0.001 could be copies of one
    assert not alone or leaders.tolist() == list(range(n))


def test_sybils_have_one_vote_and_are_found():
    def sybils(t, rows):
        rows[:4] = -rows[0]

    warden, records = play(10, sybils, rounds=12)
    assert warden.memory.doubted == {"0", "1", "2", "3"}
    assert all(r.weights[:4].sum() <= 1 / 7 + 1e-9 for r in records)
    assert all((r.weights[4:] > 0).all() for r in records)


def test_evidence_gathered_by_one_who_then_copies_is_not_its_victims():
    """A comes near the limit by itself, then sends what V sends in a round in which V lies far out: A is excluded."""
    proof = fw.Watch("relative_distance", "evidence", {"name": "offset", "limit": 2.5})
    warden = fw.Warden([proof], "quarantine", share_copies=True)

    def near_then_copy(t, rows):
        if t == 3:
            rows[9] *= 4
        rows[0] = rows[9] if t == 3 else 4 * rows[0]

    warden, records = play(10, near_then_copy, rounds=3, warden=warden)
    found = records[-1].watches[0]
    assert found.scores[0] > found.threshold > 2 * found.scores[9] > 0
    assert warden.excluded == ("0",)
    assert records[-1].flagged.tolist() == [True] + 9 * [False]


@pytest.mark.parametrize("seed", range(2))
def test_who_is_followed_like_a_shadow_keeps_its_own_evidence(seed):
    """A sends nearly what V sends, a little farther out, in every round: V was held for it in round 32."""
    n, rng, warden = 10, np.random.default_rng(seed), fw.Warden.preset("auto")
    for t in range(1, 41):
        common = rng.normal(size=2000)
        rows = common + 0.05 * rng.normal(size=(n, 2000))
        rows[9] = common + 1.62 * 0.05 * rng.normal(size=2000)  # 1.7 times as far as usual is allowed
        out = rows[9] - rows[1:9].mean(axis=0)
        rows[0] = rows[9] + 0.0135 * np.linalg.norm(common) * out / np.linalg.norm(out)
        record = warden.step(cohort(rows, t)).record
        assert not record.flagged[9]


@pytest.mark.parametrize("first", [True, False])
def test_who_copies_a_client_and_claims_another_count_raises_nothing_of_it(first):
    """V has three times the data of others and lies farther out for it; A copies it, a hair nearer, and claims 1."""
    n, rng, warden = 10, np.random.default_rng(0), fw.Warden.preset("auto")
    liar, victim = (0, 9) if first else (9, 0)
    counts = 100 * np.exp(0.8 * rng.normal(size=n))
    counts[victim] = 300
    common = 0.5 * np.random.default_rng(999).normal(size=D)
    claimed = np.where(np.arange(n) == liar, 1.0, counts)
    for t in range(1, 13):
        rows = (counts / 100)[:, None] ** 0.7 * (common + rng.normal(size=(n, D)))
        rows[liar] = rows[victim] + 1e-4 * (np.delete(rows, [liar, victim], axis=0).mean(axis=0) - rows[victim])
        record = warden.step(cohort(rows, t, counts=claimed)).record
        assert not record.flagged[victim]


@pytest.mark.parametrize(("n", "f"), [(9, 4), (11, 5)])
@pytest.mark.parametrize("seed", range(2))
def test_far_attackers_of_a_bare_minority_make_no_copies_of_clients_who_agree(n, f, seed):
    """Honest updates agree to 1.6 %, each with its own spread: they lost their votes, and the model turned round."""
    rng, warden = np.random.default_rng(seed), fw.Warden.preset("auto")
    common = np.random.default_rng(999).normal(size=D)
    spread = 0.016 / np.sqrt(2) * np.exp(0.4 * rng.normal(size=(n, 1)))
    for t in range(1, 11):
        rows = common + spread * rng.normal(size=(n, D))
        rows[:f] = -common + 0.03 * rng.normal(size=(f, D))
        keep = [i for i in range(n) if warden.asks(str(i))]
        outcome = warden.step(cohort(rows, t, keep))
        assert np.asarray(outcome.update) @ common > 0
        assert (outcome.weights[f:] > 0).all()


def crowd(n, seed=0, d=20_000):
    """So many clients that their pairs are compared by sketches; cosines of .02."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((n, d), dtype=np.float32)
    return noise + np.float32(0.14) * rng.standard_normal(d, dtype=np.float32)


def decided(rows):
    """What a new guard makes of a first round of these rows."""
    decision = fw.Warden.preset("auto").decide(cohort(rows))
    return decision, [sorted(map(int, note.clients)) for note in decision.notes if note.kind.startswith("copies")]


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("copies", [1, 400])
def test_copies_among_a_thousand_share_one_vote(copies, noise):
    rows = crowd(1000)
    own = np.random.default_rng(1).standard_normal((copies, rows.shape[1]), dtype=np.float32)
    rows[:copies] = rows[copies] + noise * own / np.sqrt(2)
    decision, groups = decided(rows)
    assert groups == [list(range(copies + 1))]
    assert np.count_nonzero(decision.weights[: copies + 1]) == 1
    assert (decision.weights[copies + 1 :] > 0).all()


def test_many_clients_that_differ_by_little_are_no_copies():
    """By three hundredths of their length, where two are allowed."""
    rows = crowd(300)
    rows[0] = rows[1] + 0.03 * np.random.default_rng(1).standard_normal(rows.shape[1], dtype=np.float32)
    rows[2] = rows[3]
    rows[2, :8] += 3.0  # a few columns alone: 8.5 of a length of 143
    _, groups = decided(rows)
    assert groups == []


def test_of_honest_clients_that_differ_nobody_is_in_doubt_and_whoever_reverses_is():
    rng = np.random.default_rng(3)
    warden, n, common = fw.Warden.preset("auto", secret=0), 300, 0.14 * rng.standard_normal(20_000, dtype=np.float32)
    for t in range(1, 6):
        rows = common + rng.standard_normal((n, 20_000), dtype=np.float32)
        rows[:120] *= -1
        warden.step(cohort(rows, t))
    assert warden.memory.doubted == {str(i) for i in range(120)}
