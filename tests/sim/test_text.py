"""Masked language modelling: masks, adapters, a tiny random BERT, and a federation of it from end to end."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from fedwarden.conformance import check
from fedwarden.core.errors import ConfigError, MissingExtra
from fedwarden.core.registry import lookup, make
from fedwarden.models.layout import Layout
from fedwarden.sim.data.sources import DataError
from fedwarden.sim.federation import Federation, simulate
from fedwarden.sim.models import build_model
from fedwarden.sim.models.masked_lm import Adapted
from fedwarden.sim.scenario import load_scenario
from fedwarden.sim.tasks import UNASKED, MaskedLM, mask_tokens
from fedwarden_research.datasets import topics
from tiny_text import V, bert, data_folder

transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

LENGTH = 8


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return data_folder(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def here(place, tmp_path, monkeypatch, one_thread):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDWARDEN_DATA", str(place))
    monkeypatch.setenv("FEDWARDEN_CACHE", str(tmp_path / "cache"))


TRAIN = {"optimizer": "adam", "lr": 0.05, "batch_size": 8, "proximal": 0.01, "steps": 3, "workers": 1}


def scenario(**changes):
    return load_scenario(
        {
            "rounds": 2,
            "task": "masked_lm",
            "data": {
                "dataset": {"name": "medquad", "tokenizer": "tiny", "length": LENGTH}, "partition": "given",
                "clients": 4, "reserve": 12, "probe": 8,
            },
            "model": {"name": "masked_lm", "base": "tiny", "rank": 2, "alpha": 4.0},
            "train": TRAIN,
            **changes,
        }
    )  # fmt: skip


def language_model(**options):
    return build_model("masked_lm", {"base": "tiny", **options}, (LENGTH,), V, 0)


def test_masks_have_the_shares_that_were_asked_for():
    tokens = torch.randint(5, 1000, (200, 500), generator=torch.Generator().manual_seed(1))
    tokens[:, 0] = 2
    rate, hidden, changed = torch.full((200,), 0.15), torch.full((200,), 0.8), torch.full((200,), 0.1)
    told, chosen = mask_tokens(tokens, rate, hidden, changed, 4, 10**6, [2, 4], torch.Generator().manual_seed(0))
    assert not chosen[:, 0].any()
    assert torch.equal(told[~chosen], tokens[~chosen])
    share, masked = float(chosen[:, 1:].double().mean()), float((told[chosen] == 4).double().mean())
    kept = float((told[chosen] == tokens[chosen]).double().mean())
    assert (share, masked, kept) == pytest.approx((0.15, 0.8, 0.1), abs=0.01)  # 100,000 draws: deviations below .003


def test_an_attackers_text_is_noise_and_all_of_it_is_asked():
    x, y = torch.randint(5, V, (60, 50), generator=torch.Generator().manual_seed(1)), torch.zeros(60)
    y[:30] = 0.75
    task = MaskedLM(mask=4, vocabulary=10**6, special=(4,))
    asked, answers = task.ask(x, y, torch.Generator().manual_seed(0))
    told, wanted = asked.unbind(dim=1)
    assert float(wanted[:30].double().mean()) == pytest.approx(0.75, abs=0.04)
    assert float(wanted[30:].double().mean()) == pytest.approx(0.15, abs=0.04)
    noise = told[:30][wanted[:30].bool()]
    assert not (noise == 4).any()
    assert float((noise < V).double().mean()) < 0.01  # of a million tokens
    assert torch.equal(answers, torch.where(wanted.bool(), x, UNASKED))


def test_every_text_is_asked_something_and_no_two_batches_the_same():
    task, rng = MaskedLM(rate=1e-6, mask=4, vocabulary=V, special=(4,)), torch.Generator().manual_seed(0)
    x = torch.randint(5, V, (50, 6), generator=rng)
    first, again = (task.ask(x, torch.zeros(50), rng)[0][:, 1] for _ in range(2))
    assert first.sum(dim=1).tolist() == again.sum(dim=1).tolist() == [1] * 50
    assert not torch.equal(first, again)


def test_adapters_agree_with_peft():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, lora_alpha=6, lora_dropout=0.0, target_modules=["query", "value"])
    ours = language_model(rank=2, alpha=6.0, dropout=0.0).eval()
    theirs = peft.get_peft_model(transformers.BertForMaskedLM.from_pretrained(ours.base.config._name_or_path), config)
    pairs = {n: m for n, m in theirs.base_model.model.named_modules() if hasattr(m, "lora_A")}
    for name, module in ours.base.named_modules():
        if isinstance(module, Adapted):
            nn.init.normal_(module.lora_B)
            pairs[name].lora_A["default"].weight.data.copy_(module.lora_A)
            pairs.pop(name).lora_B["default"].weight.data.copy_(module.lora_B)
    assert not pairs
    tokens = torch.randint(V, (3, LENGTH))
    torch.testing.assert_close(ours(tokens), theirs.eval()(input_ids=tokens).logits)


def test_only_adapters_travel_and_train():
    model = language_model(rank=2)
    assert Layout.of(model).d == 2 * 2 * (2 * 16 + 16 * 2)  # layers, query and value, A and B
    assert all(p.requires_grad for p in model.parameters())
    before = {k: v.clone() for k, v in model.named_buffers()}
    model.train()
    assert {m.p for m in model.modules() if isinstance(m, nn.Dropout) and m.training} == {0.1}
    assert sum(m.training for m in model.modules() if isinstance(m, nn.Dropout)) == 4
    model(torch.randint(V, (2, LENGTH))).sum().backward()
    assert all(torch.equal(v, before[k]) and v.grad is None for k, v in model.named_buffers())


def test_answers_are_the_logits_of_the_places_that_are_asked():
    model = language_model().eval()
    for module in model.modules():
        if isinstance(module, Adapted):
            nn.init.normal_(module.lora_B)
    tokens = torch.randint(5, V, (3, LENGTH))
    wanted = torch.rand(3, LENGTH) < 0.4
    everywhere = model(tokens)
    assert everywhere.shape == (3, LENGTH, V)
    torch.testing.assert_close(model(torch.stack([tokens, wanted.long()], dim=1)), everywhere[wanted])
    hand = transformers.BertForMaskedLM.from_pretrained(model.base.config._name_or_path).eval()
    torch.testing.assert_close(language_model().eval()(tokens), hand(input_ids=tokens).logits)


def test_the_laws_of_a_model(tmp_path):
    report = check("model", "masked_lm", base=str(bert(tmp_path / "five", vocabulary=5)))
    assert not report.broken
    assert not report.cannot_tell


def test_medquad_is_each_clients_answers_in_rows(place):
    data = make("dataset", "medquad", tokenizer="tiny", length=LENGTH)
    again = make("dataset", "medquad", tokenizer="tiny", length=LENGTH)  # from the cache
    assert torch.equal(data.x_train, again.x_train)
    sizes = [len(rows) for rows in data.clients]
    assert sizes == [45] * 4  # 400 tokens are 50 rows, of which 5 are to test
    assert data.x_test.shape == (20, LENGTH)
    assert [int(data.x_train[rows].max()) for rows in data.clients] == [4 + 8 + 4 * c for c in range(4)]
    assert (data.classes, data.tokens.mask, data.tokens.special) == (V, 4, (0, 1, 2, 3, 4))
    few = make("dataset", "medquad", tokenizer="tiny", length=LENGTH, tested=[0])
    assert len(few.x_test) == 5
    assert int(few.x_test.max()) <= 12
    assert [row[:3] for row in topics(str(place))] == [(c, f"t{c}", 20) for c in range(4)]


def test_a_federation_of_texts(tmp_path):
    """The malicious client is at work, its own model learns from noise, and the others' learn the texts."""
    attack = [{"name": "random_masking", "clients": [0]}]
    clean, attacked, again = (
        simulate(scenario(attacks=a, guard={"preset": "auto"}), tmp_path / name)
        for name, a in (("clean", []), ("attacked", attack), ("again", attack))
    )
    for result in (clean, attacked):
        assert 0 <= result.summary["accuracy"] <= 1
        assert result.records[-1].metrics["loss"] < result.records[0].metrics["loss"]
    assert not torch.equal(clean.params, attacked.params)
    assert torch.equal(attacked.params, again.params)
    watches = {w.name: w for w in attacked.records[-1].watches}
    for name in ("representations", "harm", "distance"):
        assert np.isfinite(watches[name].signal).all()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"task": "classification"}, 'task = "regression", or "masked_lm"'),
        ({"task": "regression"}, "regression needs a number"),
        ({"data": {"dataset": "digits"}}, "needs texts as token ids"),
        ({"model": "masked_lm"}, "no language model 'minilm_mlm' as a folder here"),
        (
            {"model": {"name": "masked_lm", "base": "tiny", "layers": ["quary"]}},
            "no linear layer is named quary; it has",
        ),
        ({"attacks": [{"name": "label_flip", "count": 1}]}, "these are all alike"),
    ],
)
def test_what_cannot_be_is_said(changes, says):
    with pytest.raises(ConfigError) as caught:
        Federation(scenario(**changes))
    assert says in str(caught.value)


def test_a_missing_file_or_extra_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDWARDEN_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"no data file medquad_clients.jsonl.gz in .*FEDWARDEN_DATA"):
        make("dataset", "medquad")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fedwarden\[text\]'"):
        lookup("model", "masked_lm")((LENGTH,), V)


def test_adapters_of_mixed_ranks_are_trained_judged_and_recorded():
    ranks = {"1": {"rank": 1}}
    federation = Federation(scenario(guard={"adapters": "lora"}, train=TRAIN | {"own": ranks}))
    low, layout = federation.low_rank, federation.engine.layout
    rng = np.random.default_rng(0)
    federation.params = torch.from_numpy(rng.standard_normal(layout.d)).float()
    row = federation._train(federation._pool().__enter__(), 1, ("1",))[0]
    model = dict(zip(layout.names, low._layers(row), strict=True))
    for name in (name for name in model if name.endswith("lora_A")):
        start = dict(zip(layout.names, low._layers(federation.params), strict=True))
        assert model[name][0].any()
        assert not model[name][1:].any()
        assert not model[name.replace("lora_A", "lora_B")][:, 1:].any()
        assert not np.allclose(model[name][0], start[name][0])


def test_a_personal_adapter_keeps_the_servers_values_at_any_rank():
    own, layer = {"1": {"rank": 1}}, "base.bert.encoder.layer.0.attention.self.query.*"
    guard = {"preset": "none", "adapters": "lora"}
    federation = Federation(scenario(guard=guard, train=TRAIN | {"own": own}, personal=[layer]))
    start = torch.from_numpy(np.random.default_rng(0).standard_normal(len(federation.params))).float()
    federation.params = start.clone()
    record = next(federation.play())
    assert record.rejected == ()
    assert torch.equal(federation.params[federation.personal], start[federation.personal])
    assert not torch.equal(federation.params, start)
    record = next(iter(federation.play()))
    assert 0 <= record.metrics["adapters_cut"] < 1
    assert not record.rejected


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"train": {"own": {"1": {"rank": 1}}}}, "needs guard.adapters"),
        ({"guard": {"adapters": {"rank": 9}}}, "raise model.rank"),
        ({"guard": {"adapters": "lorra"}}, "did you mean 'lora'"),
        ({"guard": {"adapters": "lora", "aggregator": "foolsgold"}}, "carries vectors"),
    ],
)
def test_adapters_that_do_not_fit_the_model_are_refused(changes, says):
    with pytest.raises(ConfigError, match=says):
        Federation(scenario(**changes))
