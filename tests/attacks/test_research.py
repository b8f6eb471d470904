"""Local model poisoning, relocated orthogonal perturbation and the hybrid sparse attack, by plain loops."""

import math

import numpy as np
import pytest
import torch

import fedwarden as fw
from fedwarden.attacks import View
from fedwarden.attacks.optimised import alie_z
from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden_research.attacks.fang import beyond, direction, krum_bound, krum_strength, outlying
from fedwarden_research.attacks.rop import turned
from fedwarden_research.attacks.sparse import sensitive

N, F, D = 12, 3, 60


def rows(n=N, d=D, seed=0, mean=0.3):
    return torch.from_numpy(np.random.default_rng(seed).normal(mean, 1.0, size=(n, d)))


def forge(name, seed=0, params=None, informed=True, **options):
    x = rows(seed=seed)
    base = torch.zeros(D, dtype=x.dtype) if params is None else params
    view = View(x[:F], x[F:] if informed else None, base, None, 1, N)
    return x, make("attack", name, **options).forge(view, np.random.default_rng(seed))


@pytest.mark.parametrize("values", ["model", "update"])
@pytest.mark.parametrize("b", [2.0, 5.0])
def test_full_knowledge_coordinate_by_coordinate(values, b):
    """The four cases of the paper, by the change without attack and the sign of the honest extreme."""
    params = rows(1, seed=9, mean=0.0)[0]
    x, sent = forge("fang", params=params, values=values, b=b)
    base = params if values == "model" else torch.zeros(D)
    cases = set()
    for k in range(D):
        honest = [float(base[k] + v) for v in x[F:, k]]
        top, bottom = max(honest), min(honest)
        if float(x[:, k].mean()) > 0:
            low, high = (bottom / b, bottom) if bottom > 0 else (b * bottom, bottom)
            cases.add(("up", bottom > 0))
        else:
            low, high = (top, b * top) if top > 0 else (top, top / b)
            cases.add(("down", top > 0))
        values_sent = [float(base[k] + v) for v in sent[:, k]]
        assert all(low - 1e-9 <= v <= high + 1e-9 for v in values_sent)
        assert len(set(values_sent)) == F  # drawn by each for itself
    assert {("up", False), ("down", True)} <= cases


def test_the_cases_with_an_extreme_on_the_other_side_of_zero():
    drawn = torch.tensor([[0.0], [1.0]])
    up = beyond(torch.tensor([[2.0], [6.0]]), torch.tensor([1.0]), 2.0, drawn)
    assert up.tolist() == [[2.0], [1.0]]  # [min / b, min]
    down = beyond(torch.tensor([[-2.0], [-6.0]]), torch.tensor([-1.0]), 2.0, drawn)
    assert down.tolist() == [[-2.0], [-1.0]]  # [max, max / b]


def test_partial_knowledge_is_three_to_four_deviations_off():
    x, sent = forge("fang", knowledge="own", informed=False)
    own = x[:F]
    for k in range(D):
        mean = float(own[:, k].mean())
        sigma = math.sqrt(sum((float(v) - mean) ** 2 for v in own[:, k]) / F)
        low, high = (mean - 4 * sigma, mean - 3 * sigma) if mean > 0 else (mean + 3 * sigma, mean + 4 * sigma)
        assert all(low - 1e-9 <= float(v) <= high + 1e-9 for v in sent[:, k])
    ends = outlying(own, direction(own), torch.tensor([[0.0], [1.0]], dtype=own.dtype))
    assert float((ends[1] - ends[0]).abs().max()) == pytest.approx(float(own.std(dim=0, correction=0).max()))


@pytest.mark.parametrize("rule", [("trimmed_mean", {"b": F}), ("median", {})])
def test_it_turns_the_rule_it_is_made_against_away_from_the_mean(rule):
    name, options = rule
    x, sent = forge("fang", values="update")
    before = fw.aggregate(name, x, **options).update
    after = fw.aggregate(name, torch.cat([sent, x[F:]]), **options).update
    s = direction(x)
    assert ((after - before) * s <= 1e-9).all()
    assert float(((after - before) * s).mean()) < -0.2


def krum_choice(x, f):
    """Blanchard et al. (2017), from the definition."""
    n = len(x)
    scores = []
    for i in range(n):
        far = sorted(math.dist(x[i].tolist(), x[j].tolist()) ** 2 for j in range(n) if j != i)
        scores.append(sum(far[: n - f - 2]))
    return scores.index(min(scores))


def bound_by_loops(benign, f):
    n, d = len(benign) + f, benign.shape[1]
    sums = []
    for i, a in enumerate(benign):
        far = sorted(math.dist(a.tolist(), b.tolist()) ** 2 for j, b in enumerate(benign) if j != i)
        sums.append(sum(far[: n - f - 2]))
    longest = max(math.hypot(*a.tolist()) for a in benign)
    return math.sqrt(min(sums) / ((n - 2 * f - 1) * d)) + longest / math.sqrt(d)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("f", [1, 3, 4])
def test_the_strength_against_krum_by_the_papers_search(seed, f):
    x = rows(seed=seed)
    benign, s = x[f:], direction(x)
    bound = bound_by_loops(benign, f)
    assert krum_bound(benign, f) == pytest.approx(bound)
    strength = bound
    while strength >= 1e-5 and krum_choice(torch.cat([(-strength * s).expand(f, -1), benign]), f) >= f:
        strength /= 2
    assert krum_strength(benign, s, f, 1e-5) == pytest.approx(strength if strength >= 1e-5 else 0.0)


def test_krum_picks_the_attackers_update_and_the_others_support_it():
    x, sent = forge("fang_krum")
    s = direction(x)
    picked = fw.aggregate("krum", torch.cat([sent, x[F:]]), f=F)
    assert picked.weights[:F].sum() == 1.0
    assert len({round(abs(float(v)), 9) for v in sent[0]}) == 1  # every parameter by lambda
    assert torch.equal(sent[0].sign(), -s)
    for row in sent[1:]:
        assert 0 < float((row - sent[0]).norm()) <= 0.01


def test_krum_attack_with_partial_knowledge_goes_by_its_own():
    x, sent = forge("fang_krum", knowledge="own", informed=False, epsilon=0.0)
    s = direction(x[:F])
    strength = krum_strength(x[:F], s, 1, 1e-5)
    assert strength > 0
    torch.testing.assert_close(sent, (-strength * s).expand(F, -1))


def test_where_krum_picks_none_they_send_what_they_trained():
    same = torch.ones(5, 4)
    view = View(torch.full((2, 4), 2.0), same, torch.zeros(4), None, 1, 7)
    sent = make("attack", "fang_krum").forge(view, np.random.default_rng(0))
    assert torch.equal(sent, view.own)  # honest updates that agree to the bit have scores of 0
    with pytest.raises(ValueError, match=r"needs n >= 2f \+ 2 clients; got n=7, f=3"):
        krum_bound(torch.ones(4, 2), f=3)


SIX = torch.from_numpy(np.random.default_rng(1).normal(0.4, 1.0, size=(6, 30)))
LAST = torch.from_numpy(np.random.default_rng(2).normal(0.2, 1.0, size=30))
MIDDLE = SIX.mean(dim=0)


def rop(previous=LAST, **options):
    view = View(SIX[:2], SIX, torch.zeros(30), previous, 2, 8)
    sent = make("attack", "rop", **options).forge(view, np.random.default_rng(0))
    assert torch.equal(sent[0], sent[1])
    return sent[0]


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


@pytest.mark.parametrize("angle", [0.0, 30.0, 90.0, 135.0, 180.0])
def test_the_angle_to_the_reference(angle):
    push = turned(LAST, angle)
    assert float(push.norm()) == pytest.approx(1.0)
    assert cosine(push, LAST) == pytest.approx(math.cos(math.radians(angle)), abs=1e-9)
    plane = torch.linalg.lstsq(torch.stack([LAST, torch.ones(30)], dim=1), push[:, None]).solution
    torch.testing.assert_close(plane[0, 0] * LAST + plane[1, 0], push)  # in the plane of the two


@pytest.mark.parametrize("relocation", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("reference", [0.0, 0.9, 1.0])
def test_place_reference_and_length(relocation, reference):
    sent = rop(relocation=relocation, reference=reference, angle=90.0, length=2.5)
    push = sent - (relocation * LAST + (1 - relocation) * MIDDLE)
    assert float(push.norm()) == pytest.approx(2.5)
    assert cosine(push, reference * LAST + (1 - reference) * MIDDLE) == pytest.approx(0.0, abs=1e-9)


def test_without_a_length_it_is_as_far_as_the_honest_ones_are():
    distances = [math.dist(row.tolist(), LAST.tolist()) for row in SIX]
    assert float((rop() - LAST).norm()) == pytest.approx(sum(distances) / len(distances))


def test_in_the_first_round_it_starts_at_zero_and_turns_from_the_mean():
    sent = rop(previous=None, length=3.0)
    assert float(sent.norm()) == pytest.approx(3.0)
    assert float(sent @ MIDDLE) == pytest.approx(0.0, abs=1e-9)


EIGHT = torch.from_numpy(np.random.default_rng(0).normal(0.2, 1.0, size=(8, 200)))
MODEL = torch.from_numpy(np.random.default_rng(1).normal(size=200))


def sparse(**options):
    view = View(torch.zeros(4, 200, dtype=EIGHT.dtype), EIGHT, MODEL, None, 1, 12)
    return make("attack", "sparse", **options).forge(view, np.random.default_rng(0))


@pytest.mark.parametrize("z", [None, 0.7])
def test_the_most_sensitive_go_further_and_the_rest_as_in_alie(z):
    sent = sparse(density=0.05, scale=3.0, z=z)
    assert all(torch.equal(row, sent[0]) for row in sent)
    salience = [abs(float(MODEL[k]) * float(EIGHT[:, k].mean())) for k in range(200)]
    hit = sorted(range(200), key=lambda k: -salience[k])[:10]  # 5 % of 200
    for k in range(200):
        column = EIGHT[:, k].tolist()
        mean = sum(column) / len(column)
        sigma = math.sqrt(sum((v - mean) ** 2 for v in column) / len(column))
        steps = 3.0 if k in hit else alie_z(12, 4) if z is None else z
        assert float(sent[0, k]) == pytest.approx(mean - steps * sigma)


def test_at_least_one_parameter_is_hit():
    assert sensitive(torch.ones(10), torch.arange(10.0), share=0.001).nonzero().tolist() == [[9]]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fang", {"b": 1.0}, "b is above 1; got 1.0"),
        ("fang", {"values": "gradient"}, "values is 'model' or 'update'; got 'gradient'"),
        ("fang", {"knowledge": "some"}, "knowledge is 'own' or 'all'; got 'some'"),
        ("fang_krum", {"epsilon": -1.0}, "epsilon is not below 0 and threshold is positive; got -1.0"),
        ("fang_krum", {"threshold": 0.0}, "threshold is positive; got 0.01 and 0.0"),
        ("rop", {"relocation": 1.5}, r"relocation and reference lie in \[0, 1\]; got 1.5 and 0.9"),
        ("rop", {"length": -1.0}, "length is not below 0; got -1.0"),
        ("rop", {"knowledge": "none"}, "knowledge is 'own' or 'all'"),
        ("sparse", {"density": 0.0}, "density lies above 0 and up to 1; got 0.0"),
        ("sparse", {"density": 1.5}, "density lies above 0 and up to 1; got 1.5"),
        ("sparse", {"knowledge": "none"}, "knowledge is 'own' or 'all'"),
    ],
)
def test_options_outside_of_their_range(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make("attack", name, **options)
