"""The auditor in a real federation of two clients, resumed, and where there is nothing to see."""

import inspect
import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import fedwarden as fw
from fedwarden.audit import Auditor, Observation
from fedwarden.core.errors import ConfigError
from fedwarden.store import checkpoint

START, ROUNDS = 11, 11


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    return torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def train(model, state, x, y, rng):
    model.load_state_dict(state)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(2):
        for batch in torch.randperm(len(y), generator=rng).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return {k: v.clone() for k, v in model.state_dict().items()}


def federation(digits, swap, rounds=ROUNDS, seed=0):
    """What the first of two clients sees; the second gets fresh samples of the same distribution in round START."""
    x, y = digits
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))
    probe, mine, old, new = order[:200], order[200:600], order[600:1000], order[1000:1400]
    model, rng = network(seed), torch.Generator().manual_seed(seed)
    shared = {k: v.clone() for k, v in model.state_dict().items()}
    rows = []
    for t in range(1, rounds + 1):
        theirs = new if swap and t >= START else old
        own = train(model, shared, x[mine], y[mine], rng)
        other = train(model, shared, x[theirs], y[theirs], rng)
        shared = {k: (own[k] + other[k]) / 2 for k in own}
        rows.append((t, shared, own))
    return x[probe], y[probe], rows


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def runs(digits):
    out = {}
    for swap in (False, True):
        probe, labels, rows = federation(digits, swap)
        auditor = Auditor(network(), probe, labels, n=2)
        out[swap] = [o for row in rows for o in auditor.observe(*row)]
    return {**out, "rows": rows, "probe": probe, "labels": labels}


def pick(observations, round, source, metric):
    (found,) = [o for o in observations if (o.round, o.source, o.metric, o.layer) == (round, source, metric, "")]
    return found


def test_the_auditor_sees_a_fresh_swap(runs):
    for metric in ("cosine", "procrustes"):
        assert pick(runs[True], START, "gradients", metric).alarm
        assert not pick(runs[False], START, "gradients", metric).alarm
    assert pick(runs[True], START, "gradients", "cosine").relative < -0.2  # the step turns away from the last one
    for source in ("weights", "representations"):
        swapped, still = (pick(runs[s], START, source, "procrustes") for s in (True, False))
        assert swapped.score > 2 * abs(still.score)
    swapped, still = (pick(runs[s], START, "outputs", "mean_logits") for s in (True, False))
    assert swapped.score > still.score
    assert set(swapped.parts) == {str(c) for c in range(10)}


def test_sources_speak_from_the_round_the_paper_gives(runs):
    first = {}
    for o in runs[False]:
        first.setdefault(o.source, o.round)
    assert first == {"evaluation": 1, "weights": 2, "representations": 2, "outputs": 2, "gradients": 3}
    metrics = {(o.source, o.metric) for o in runs[False]}
    assert {(s, m) for s, m in metrics if s in ("weights", "representations", "gradients")} == {
        (s, m) for s in ("weights", "representations", "gradients") for m in ("cosine", "procrustes", "cmd")
    }  # the nine of the paper


def test_the_values_are_the_metrics_of_the_other_clients_models(runs):
    two = [row for row in runs["rows"] if row[0] in (4, 5)]
    others = [torch.cat([(2 * g[k] - w[k]).reshape(-1) for k in g]) for _, g, w in two]
    assert pick(runs[True], 5, "weights", "cosine").value == pytest.approx(fw.cosine(*others), rel=1e-6)
    assert pick(runs[True], 5, "weights", "procrustes").value == pytest.approx(fw.procrustes(*others), rel=1e-3)
    model = network()
    logits = []
    for flat in others:
        torch.nn.utils.vector_to_parameters(flat, model.parameters())
        logits.append(model(runs["probe"]).detach())
    assert pick(runs[True], 5, "evaluation", "loss").value == pytest.approx(
        float(nn.functional.cross_entropy(logits[1], runs["labels"])), rel=1e-4
    )
    gap = (logits[1] - logits[0]).mean(dim=0)
    gap = gap - gap.mean()
    assert pick(runs[True], 5, "outputs", "mean_logits").value == pytest.approx(
        float(gap.square().mean().sqrt()), rel=1e-3
    )


def test_scores_wait_for_enough_of_a_past(runs):
    for o in runs[False]:
        if o.source == "weights":
            assert math.isnan(o.expected) == (o.round < 3)
            assert math.isnan(o.p) == (o.round < 5)  # three values and a degree of freedom


def test_an_auditor_resumes_to_the_same_numbers(runs, tmp_path):
    options = {"n": 2, "per_layer": True, "metrics": ("cosine", "cmd", "procrustes_orthogonal")}
    whole = Auditor(network(), runs["probe"][:50], runs["labels"][:50], **options)
    expected = [whole.observe(*row) for row in runs["rows"]]
    for cut in (0, 1, 6):
        first, second = (Auditor(network(), runs["probe"][:50], runs["labels"][:50], **options) for _ in range(2))
        for row in runs["rows"][:cut]:
            first.observe(*row)
        checkpoint.save(tmp_path / "auditor.safetensors", first.state_dict())
        second.load_state_dict(checkpoint.load(tmp_path / "auditor.safetensors"))
        found = [second.observe(*row) for row in runs["rows"][cut:]]
        assert repr(found) == repr(expected[cut:])  # NaN is NaN


def test_it_sees_only_what_a_client_sees(runs):
    assert list(inspect.signature(Auditor.observe).parameters) == ["self", "round", "params", "own", "share"]
    model = network()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    auditor = Auditor(model, runs["probe"], runs["labels"])
    for row in runs["rows"][:3]:
        auditor.observe(*row)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_layers_by_name(runs):
    auditor = Auditor(network(), runs["probe"], n=2, per_layer=True, metrics=("cmd",), layers=("1", "2"))
    auditor.observe(*runs["rows"][0])
    seen = auditor.observe(*runs["rows"][1])
    layers = {s: [o.layer for o in seen if o.source == s] for s in ("weights", "representations")}
    assert layers == {"weights": ["", "0.weight", "0.bias", "2.weight", "2.bias"], "representations": ["", "1", "2"]}


def test_models_that_stand_still_raise_no_alarm_and_no_error():
    model = network()
    x, y = torch.rand(20, 64), torch.arange(20) % 10
    auditor = Auditor(model, x, y, n=3, per_layer=True)
    state = model.state_dict()
    for t in range(1, 10):
        seen = auditor.observe(t, state, state)
        assert not any(o.alarm for o in seen)
    values = {(o.source, o.metric): o.value for o in seen if not o.layer}
    assert values["weights", "cosine"] == pytest.approx(1.0)
    assert values["weights", "procrustes"] == 0.0
    assert values["weights", "cmd"] == 0.0
    assert math.isnan(values["gradients", "cosine"])  # no step, no direction
    assert values["outputs", "mean_logits"] == 0.0
    json = auditor.state_dict()["series"]
    assert all(math.isfinite(v) for values in json.values() for v in values)


def test_a_model_that_broke_is_reported_as_not_a_number_and_forgotten():
    model = network()
    x, y = torch.rand(20, 64), torch.arange(20) % 10
    auditor = Auditor(model, x, y, n=2)
    rng = torch.Generator().manual_seed(0)
    for t in range(1, 8):
        flat = 0.01 * torch.randn(2410, generator=rng)
        if t == 5:
            flat[3] = math.nan
        seen = auditor.observe(t, flat, flat)
        assert not any(o.alarm for o in seen)
        if t in (5, 6):
            assert all(math.isnan(o.value) for o in seen if o.source in ("weights", "outputs"))
    assert all(math.isfinite(o.value) for o in seen if o.source in ("weights", "outputs"))


def test_buffers_are_removed_with_ones_own_but_not_measured():
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)) for _ in range(3)]
    for m in models:
        m(torch.randn(50, 3) * 5)  # running statistics of its own
    own, first, second = (m.state_dict() for m in models)
    auditor = Auditor(models[0], torch.randn(8, 3), n=2, sources=("weights",), metrics=("cosine",))
    for t, other in ((1, first), (2, second)):
        average = {k: (own[k] + other[k]) / 2 if own[k].is_floating_point() else own[k] for k in own}
        seen = auditor.observe(t, average, own)
    vectors = [torch.nn.utils.parameters_to_vector(m.parameters()) for m in models[1:]]
    assert seen[0].value == pytest.approx(fw.cosine(*vectors), abs=1e-5)
    target = auditor.information.layout.unflatten(auditor.view.target)
    assert torch.allclose(target["1.running_var"], second["1.running_var"], atol=1e-5)


def test_classes_that_moved_are_named_farthest_first():
    o = Observation(1, "outputs", "mean_logits", "", 1.0, 0.5, 3.0, 0.1, False, {"0": 3.5, "1": -9.0, "2": 1.0})
    assert o.moved() == ("1", "0")
    assert o.moved(limit=0.5) == ("1", "0", "2")
    assert (o.divergence, o.relative) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sources": ("weigths",)}, "no source 'weigths' of an audit; did you mean 'weights'"),
        ({"metrics": ("cosin",)}, "no metric 'cosin' of an audit; did you mean 'cosine'"),
        ({"sources": ("evaluation",)}, "needs the labels of the probe"),
        ({"n": 1}, "n >= 2 clients; got n=1"),
        ({"share": 1.0}, r"lies in \[0, 1\); got 1.0"),
        ({"window": 2}, "at least 3 rounds; got 2"),
        ({"alpha": 5}, r"alpha lies in \(0, 1\); got 5"),
        ({"labels": [0, 1]}, r"one label per sample of the probe; got \(2,\) for 3"),
    ],
)
def test_what_cannot_be_audited_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Auditor(network(), torch.rand(3, 64), **options)


def test_a_centralised_model_is_audited_without_own_part():
    auditor = Auditor(network(), torch.rand(3, 64), n=1, remove_own=False)
    params = torch.randn(2410)
    auditor.observe(1, params, own=torch.randn(2410))
    assert torch.equal(auditor.view.target, params)


def test_outputs_must_be_logits():
    auditor = Auditor(nn.Linear(4, 1), torch.rand(3, 4), sources=("outputs",))
    auditor.observe(1, torch.zeros(5))
    with pytest.raises(ValueError, match=r"logits \(samples, classes\); the model gives \(3, 1\)"):
        auditor.observe(2, torch.ones(5))


def test_a_share_of_its_own_for_each_round():
    auditor = Auditor(network(), torch.rand(3, 64), n=2, sources=("weights",))
    own, other = torch.randn(2410), torch.randn(2410)
    auditor.observe(1, 0.25 * own + 0.75 * other, own, share=0.25)
    torch.testing.assert_close(auditor.view.target, other)


def test_an_auditor_shows_what_it_saw():
    net = nn.Linear(2, 2)
    auditor = Auditor(net, probe=torch.eye(2), n=2, sources=("weights",), metrics=("cosine", "cmd"))
    assert "nothing observed yet" in auditor._repr_html_()
    assert "nothing" in auditor.plot().layout.annotations[0].text
    rng = torch.Generator().manual_seed(0)
    for t in range(1, 9):
        auditor.observe(t, torch.randn(6, generator=rng), own=torch.zeros(6))
    last = [o for o in auditor.recent if o.round == 8]
    text = auditor._repr_html_()
    assert "round 8" in text
    assert all(f"{o.value:.4g}" in text for o in last)
    assert auditor.plot("weights", "cmd").layout.title.text == "weights, cmd"
    least = min((o for o in auditor.recent if not math.isnan(o.p)), key=lambda o: o.p)
    assert auditor.plot().layout.title.text == f"weights, {least.metric}"


def test_weights_and_gradients_need_no_forward_pass():
    class Broken(torch.nn.Linear):
        def forward(self, _):
            raise RuntimeError("it was run")

    auditor = Auditor(Broken(2, 2), torch.zeros(1, 2), n=2, sources=("weights", "gradients"))
    seen = [auditor.observe(t, torch.arange(6.0) ** t) for t in (1, 2, 3)]
    assert [len(found) for found in seen] == [0, 3, 6]
    with pytest.raises(RuntimeError, match="it was run"):
        Auditor(Broken(2, 2), torch.zeros(1, 2), n=2, sources=("outputs",)).observe(1, torch.zeros(6))
