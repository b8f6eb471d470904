"""Local differential privacy of a node: what it sends, what it costs, and that nothing leaves where anything fails."""

import json
import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from scipy import stats

from fedwarden.flower.mods import clip_and_noise
from fedwarden.flower.mods.privacy import KEY, cost, epsilon_of, gaussian

from .nodes import asking, of_node

D = 20_000
MODEL = {"w": np.linspace(-1, 1, D, dtype=np.float32), "half": np.ones(3, np.float16), "count": np.array(41)}


def ask(t=1, kind="train", model=MODEL):
    return asking(t, model, kind)


def trained(message):
    """A step of length 50 in all, and a counter that goes on."""
    made = {name: a.numpy() for name, a in message.content["arrays"].items()}
    return {**made, "w": made["w"] + np.float32(50 / math.sqrt(D)), "count": made["count"] + 1}


def play(message, context, mod, answer=trained, extra=None):
    app = ClientApp(mods=[mod])

    @app.train()
    @app.evaluate()
    def reply(message, context):
        made = answer(message)
        if isinstance(made, Error):
            return Message(made, reply_to=message)
        content = RecordDict({"metrics": MetricRecord({"num-examples": 10, "train_loss": 0.123})})
        if made is not None:
            content["arrays"] = ArrayRecord({k: Array(np.asarray(v)) for k, v in made.items()})
        for key, record in (extra or {}).items():
            content[key] = record
        return Message(content, reply_to=message)

    return app(message, context)


def sent(reply):
    return {name: a.numpy() for name, a in reply.content["arrays"].items()}


def refused(reply):
    """No content at all, and a reason that says nothing of the node's."""
    return reply.has_error() and not reply.has_content() and reply.error.reason.startswith("fedwarden: ")


def test_the_update_travels_clipped():
    reply = play(ask(), of_node(), clip_and_noise(norm=2.0, noise=1e-6, epsilon=1e15))
    step = sent(reply)["w"].astype(float) - MODEL["w"]
    assert np.linalg.norm(step) == pytest.approx(2.0, rel=1e-3)
    np.testing.assert_allclose(
        step, 2.0 / math.sqrt(D), atol=2e-5
    )  # shortened, not turned; ten deviations of the noise
    assert sent(reply)["count"] == 41  # as it came: the node's own would not be protected
    assert {name: a.dtype for name, a in sent(reply).items()} == {name: a.dtype for name, a in MODEL.items()}


def test_the_noise_has_the_stated_deviation_and_is_new_in_every_round():
    context, mod = of_node(), clip_and_noise(norm=0.5, noise=3.0, epsilon=100.0)
    first, second = (sent(play(ask(), context, mod))["w"].astype(float) - MODEL["w"] for _ in range(2))
    centre = 0.5 / math.sqrt(D)
    for drawn in (first, second):
        assert stats.kstest((drawn - centre) / 1.5, "norm").pvalue > 1e-4
        assert drawn.std() == pytest.approx(1.5, rel=5 / math.sqrt(2 * D))  # five deviations of a deviation
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(D)


def test_standard_normal_numbers_from_words():
    words = np.array([0, 2**63, 2**64 - 1, int(0.975 * 2**64)], np.uint64)
    assert gaussian(words)[3] == pytest.approx(1.959964, abs=1e-5)  # of a printed table
    assert gaussian(words)[0] == pytest.approx(-gaussian(words)[2])
    assert np.isfinite(gaussian(words)).all()


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0])
def test_the_account_is_that_of_the_gaussian_trade_off(mu):
    """delta(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2): corollary 1 of Dong et al."""
    delta = 1e-5
    eps = epsilon_of(mu**2, delta)
    back = stats.norm.cdf(-eps / mu + mu / 2) - math.exp(eps) * stats.norm.cdf(-eps / mu - mu / 2)
    assert back == pytest.approx(delta, rel=1e-5)
    assert eps < mu**2 / 2 + math.sqrt(2 * mu**2 * math.log(1 / delta))  # the looser bound by zCDP, Bun and Steinke


def test_one_answer_at_twice_the_clipping_norm_is_the_published_one():
    """1-GDP is (1, 0.1269)-private: Phi(-1/2) - e Phi(-3/2) by a table of the normal distribution."""
    assert cost(noise=2.0) == 1.0
    assert epsilon_of(cost(2.0), 0.30854 - math.e * 0.06681) == pytest.approx(1.0, abs=2e-4)


def test_the_budget_is_counted_across_rounds_and_processes():
    context = of_node()
    limit = epsilon_of(3 * cost(10.0), 1e-5) * (1 + 1e-9)  # enough for three
    replies = []
    for t in range(1, 6):  # a new process answers each message: only the context is left
        replies.append(play(ask(t), context, clip_and_noise(norm=1.0, noise=10.0, epsilon=limit)))
    assert [r.has_content() for r in replies] == [True] * 3 + [False] * 2
    assert all(map(refused, replies[3:]))
    assert "spent its privacy budget" in replies[4].error.reason
    assert context.state.config_records[KEY]["spent"] == pytest.approx(3 * 0.04)


def test_a_node_without_budget_does_not_even_train():
    def never(message):
        raise AssertionError("it trained")

    reply = play(ask(), of_node(), clip_and_noise(norm=1.0, noise=1.0, epsilon=0.1), never)
    assert "spent its privacy budget" in reply.error.reason


def test_a_file_outlives_runs_and_restarts(tmp_path):
    account = {"privacy-account": str(tmp_path / "account.json")}
    limit = epsilon_of(3 * cost(10.0), 1e-5) * (1 + 1e-9)
    mod = clip_and_noise(norm=1.0, noise=10.0, epsilon=limit)
    replies = [play(ask(), of_node(**account), mod) for _ in range(5)]  # a new run each time: the context is empty
    assert [r.has_content() for r in replies] == [True] * 3 + [False] * 2
    assert json.loads((tmp_path / "account.json").read_text()) == {"spent": pytest.approx(0.12)}


def test_what_was_spent_with_other_noise_counts():
    context = of_node()
    assert play(ask(), context, clip_and_noise(norm=1.0, noise=4.0, epsilon=50.0)).has_content()
    assert play(ask(), context, clip_and_noise(norm=1.0, noise=1.0, epsilon=50.0)).has_content()
    assert context.state.config_records[KEY]["spent"] == pytest.approx(0.25 + 4.0)


GOOD = {"norm": 1.0, "noise": 10.0, "epsilon": 10.0}
FAULTS = {
    "nan": lambda m: {**trained(m), "w": np.full(D, np.nan, np.float32)},
    "inf": lambda m: {**trained(m), "half": np.array([1, np.inf, 1], np.float16)},
    "unknown array": lambda m: {**trained(m), "secret": np.ones(3)},
    "missing array": lambda m: {k: v for k, v in trained(m).items() if k != "half"},
    "wrong shape": lambda m: {**trained(m), "w": np.ones(4, np.float32)},
    "wrong dtype": lambda m: {**trained(m), "w": np.array(["secret"] * D)},
    "no arrays": lambda m: None,
    "an error": lambda m: Error(2, "the secret is 42"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_the_app_does_wrong_nothing_leaves(fault):
    context = of_node()
    reply = play(ask(), context, clip_and_noise(**GOOD), FAULTS[fault])
    assert refused(reply)
    assert "secret" not in reply.error.reason
    assert context.state.config_records[KEY]["spent"] > 0  # that it is refused may hang on the data, and tells of them


def test_refusals_that_hang_on_the_noise_are_not_for_free():
    """Near the end of float16's range, how often an answer is refused tells where the update lies."""
    context, mod = of_node(), clip_and_noise(norm=16.0, noise=2.0, epsilon=8.0)
    edge = {"w": np.full(D, 65504, np.float16)}
    replies = [play(ask(model=edge), context, mod, lambda m: edge) for _ in range(40)]
    assert sum("spent its privacy budget" in r.error.reason for r in replies if r.has_error()) >= 37


def test_an_exception_tells_the_server_nothing():
    def fail(message):
        raise RuntimeError("patient 42 has no label")

    reply = play(ask(), of_node(), clip_and_noise(**GOOD), fail)
    assert refused(reply)
    assert "42" not in reply.error.reason


@pytest.mark.parametrize("record", [ConfigRecord({"notes": "secret"}), ArrayRecord({"x": Array(np.ones(2))})])
def test_records_that_nobody_protects_are_not_sent(record):
    assert refused(play(ask(), of_node(), clip_and_noise(**GOOD), extra={"more": record}))


@pytest.mark.parametrize(
    "held", [ConfigRecord({"other": 1.0}), ConfigRecord({"spent": "0"}), ConfigRecord({"spent": -5.0}),
             ConfigRecord({"spent": math.nan}), ConfigRecord({"spent": True})],
)  # fmt: skip
def test_an_account_that_cannot_be_read_is_not_an_empty_one(held):
    context = of_node()
    context.state[KEY] = held
    assert refused(play(ask(), context, clip_and_noise(**GOOD)))


@pytest.mark.parametrize("text", ["", "{}", '{"spent": "x"}', '{"spent": -1}', "[1"])
def test_a_damaged_file_is_not_an_empty_one(tmp_path, text):
    (tmp_path / "account.json").write_text(text)
    assert refused(play(ask(), of_node(**{"privacy-account": str(tmp_path / "account.json")}), clip_and_noise(**GOOD)))


@pytest.mark.parametrize("path", ["", 3, "no/such/folder/account.json"])
def test_a_file_that_cannot_be_written(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    assert refused(play(ask(), of_node(**{"privacy-account": path}), clip_and_noise(**GOOD)))


def test_only_public_metrics_are_sent_with_any_answer():
    for kind in ("train", "evaluate"):
        message = ask(kind=kind)
        reply = play(message, of_node(), clip_and_noise(**GOOD), trained if kind == "train" else lambda m: None)
        assert dict(reply.content["metrics"]) == {"num-examples": 10}
    assert refused(play(ask(kind="evaluate"), of_node(), clip_and_noise(**GOOD)))  # arrays with an evaluation
    reply = play(ask(), of_node(), clip_and_noise(**GOOD, public=("num-examples", "train_loss")))
    assert reply.content["metrics"]["train_loss"] == 0.123


def test_a_variance_never_falls_below_zero():
    model = {"bn.running_var": np.full(1000, 0.01, np.float32)}
    reply = play(ask(model=model), of_node(), clip_and_noise(**GOOD), lambda m: model)
    assert (sent(reply)["bn.running_var"] >= 0).all()
    assert (sent(reply)["bn.running_var"] == 0).any()


@pytest.mark.parametrize(
    ("options", "reason"), [({"norm": 0.0}, "norm"), ({"noise": 0.0}, "noise"), ({"epsilon": math.nan}, "epsilon"),
                            ({"delta": 0.0}, "delta"), ({"norm": math.inf}, "norm")],
)  # fmt: skip
def test_options_that_protect_nothing(options, reason):
    with pytest.raises(ValueError, match=f"needs a {reason}"):
        clip_and_noise(**{**GOOD, **options})
