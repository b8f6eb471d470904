"""A node attacks where its own configuration says so, as the registry's attack says, and nowhere else."""

import logging

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedwarden as fw
from fedwarden.attacks import DataAttack, ModelAttack
from fedwarden.conformance.attacks import CLASSES, images, texts, tokens
from fedwarden.core.errors import FedwardenError
from fedwarden.core.registry import make
from fedwarden.flower.mods import attack_mod, poisoned

from .nodes import asking

MODEL = {
    "fc.weight": np.linspace(-1, 1, 60, dtype=np.float32).reshape(6, 10),
    "bn.running_mean": np.ones(3, np.float32),
    "bn.num_batches_tracked": np.array(2**40 + 1),
}
STEP = np.random.default_rng(0).normal(0, 0.1, (6, 10)).astype(np.float32)

NEED_OTHERS = {"adaptive", "copy", "frame", "mimic", "strongest"}
NEED_SEVERAL = {"alie", "fang", "min_max", "min_sum", "sparse"}


def node(**config):
    """The context of a node with this configuration; '_' stands for '-'."""
    given = {key.replace("_", "-"): value for key, value in config.items()}
    return Context(run_id=1, node_id=7, node_config=given, state=RecordDict(), run_config={"red-team": "sign_flip"})


def ask(t=1, model=MODEL, kind="train"):
    return asking(t, model, kind)


def play(message, context, samples=None, classes=CLASSES, seen=None):
    """What a node answers that takes one known step; with samples, it asks for them as the red team wants them."""
    app = ClientApp(mods=[attack_mod()])

    @app.train()
    @app.evaluate()
    def answer(message, context):
        if samples is not None:
            found = poisoned(message, context, *samples, classes=classes, pool=seen)
            samples[:] = found
        made = {name: a.numpy() for name, a in message.content["arrays"].items()}
        made["fc.weight"] = made["fc.weight"] + STEP
        made["bn.num_batches_tracked"] = made["bn.num_batches_tracked"] + 1
        content = RecordDict({"arrays": ArrayRecord({name: Array(np.asarray(a)) for name, a in made.items()})})
        content["metrics"] = MetricRecord({"num-examples": 10, "train_loss": 1.0})
        return Message(content, reply_to=message)

    return app(message, context)


def sent(reply):
    return {name: a.numpy() for name, a in reply.content["arrays"].items()}


def update(reply):
    return sent(reply)["fc.weight"] - MODEL["fc.weight"]


@pytest.fixture
def log(caplog, monkeypatch):
    caplog.set_level(logging.WARNING, logger="flwr")
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    return caplog


@pytest.mark.parametrize("config", [{}, {"red_team": ""}, {"red_team_options": "scale = 3.0"}])
def test_it_is_off_until_a_node_names_an_attack_whatever_the_run_says(config, log):
    reply = play(ask(), node(**config))
    np.testing.assert_allclose(update(reply), STEP, atol=1e-6)
    assert not log.records


def test_an_attack_acts_on_the_update_leaves_buffers_alone_and_is_logged_in_every_round(log):
    context = node(red_team="sign_flip", red_team_options="scale = 3.0")
    for t in (1, 2):
        reply = play(ask(t), context)
        np.testing.assert_allclose(update(reply), -3 * STEP, atol=1e-5)
        assert sent(reply)["bn.num_batches_tracked"] == 2**40 + 2  # more than a float32 holds
        assert list(sent(reply)) == list(MODEL)
        assert reply.content["metrics"]["num-examples"] == 10
    lines = [r.getMessage() for r in log.records]
    assert len(lines) == 2
    assert "in round 2 node 7 sends sign_flip" in lines[1]


def test_a_schedule_and_a_claim_are_those_of_a_scenario():
    context = node(red_team="scaling", red_team_options="factor = 5.0, start = 2, ramp = 1, end = 3, claims = 2.5")
    replies = [play(ask(t), context) for t in (1, 2, 3, 4)]
    for reply, factor in zip(replies, (1.0, 3.0, 5.0, 1.0), strict=True):
        np.testing.assert_allclose(update(reply), factor * STEP, atol=1e-5)
    assert [r.content["metrics"]["num-examples"] for r in replies] == [10, 25, 25, 10]


def test_a_free_rider_knows_the_last_change_of_the_model():
    context = node(red_team="free_rider", red_team_options="noise = 0.0")
    assert not update(play(ask(1), context)).any()
    moved = {**MODEL, "fc.weight": MODEL["fc.weight"] + 0.25}
    reply = play(ask(2, moved), context)
    np.testing.assert_allclose(sent(reply)["fc.weight"] - moved["fc.weight"], 0.25, atol=1e-6)
    far = play(ask(9, moved), context)  # it was not asked in between
    np.testing.assert_array_equal(sent(far)["fc.weight"], moved["fc.weight"])


def test_nodes_with_a_common_seed_draw_alike_and_others_do_not():
    def drawn(number, **config):
        context = node(red_team="gaussian", **config)
        context.node_id = number
        return update(play(ask(), context))

    np.testing.assert_array_equal(drawn(1, red_team_seed=5), drawn(2, red_team_seed=5))
    assert (drawn(1) != drawn(2)).any()


@pytest.mark.parametrize("name", fw.names("attack"))
def test_every_attack_of_the_registry_runs_from_one_node_or_says_why_not(name):
    context, attack = node(red_team=name), make("attack", name)
    if name in NEED_OTHERS | NEED_SEVERAL:
        reason = "needs the updates of other clients" if name in NEED_OTHERS else "the spread of several updates"
        with pytest.raises(FedwardenError, match=f"attack '{name}' .*{reason}"):
            play(ask(), context)
    elif isinstance(attack, ModelAttack):
        assert not np.allclose(update(play(ask(), context)), STEP, atol=1e-4)
    else:
        assert isinstance(attack, DataAttack)
        kind = {"token_replacement": tokens, "random_masking": texts}.get(name, images)
        (x, y), spare = ((s.x, torch.from_numpy(s.y)) for s in (kind(30, 0), kind(300, 9)))
        given = [x, y]
        reply = play(ask(), context, given, seen=spare)
        assert not (torch.equal(given[0], x) and torch.equal(given[1], y))
        assert (given[0].dtype, given[1].dtype, given[0].shape, given[1].shape) == (x.dtype, y.dtype, x.shape, y.shape)
        np.testing.assert_allclose(update(reply), STEP, atol=1e-6)  # the arrays are left to the training


def test_an_attack_that_knows_all_where_it_can_choose_goes_by_its_own():
    np.testing.assert_allclose(update(play(ask(), node(red_team="ipm"))), -0.5 * STEP, atol=1e-6)


def test_data_are_changed_alike_in_every_round_logged_and_never_in_place(log):
    x, y = torch.zeros(40, 3), torch.arange(40) % 4
    context = node(red_team="label_flip", red_team_options="mode = 'pairwise', start = 2, ramp = 1")
    rounds = []
    for t in (1, 2, 3):
        samples = [x, y]
        play(ask(t), context, samples)
        rounds.append(samples[1])
    assert torch.equal(rounds[0], y)
    assert int((rounds[1] != y).sum()) == 20
    assert torch.equal(rounds[2], 3 - y)
    half = rounds[1] != y
    assert torch.equal(rounds[1][half], rounds[2][half])
    assert torch.equal(y, torch.arange(40) % 4)
    assert ["(20 of 40 samples)" in r.getMessage() for r in log.records] == [True, False]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"red_team": "sing_flip"}, "did you mean 'sign_flip'"),
        ({"red_team": 3}, "is the name of an attack"),
        ({"red_team": "sign_flip", "red_team_options": "scael = 2.0"}, "did you mean 'scale'"),
        ({"red_team": "sign_flip", "red_team_options": "scale"}, "is like"),
        ({"red_team": "sign_flip", "red_team_options": "start = 0"}, "number of rounds; got 0"),
        ({"red_team": "sign_flip", "red_team_options": "start = 4, end = 2"}, "before it starts"),
        ({"red_team": "sign_flip", "red_team_options": "claims = -1"}, "claims is a factor"),
        ({"red_team": "sign_flip", "red_team_seed": "x"}, "whole number"),
        ({"red_team": "ipm", "red_team_options": "knowledge = 'all'"}, "updates of other clients"),
        ({"red_team": "scaling", "red_team_options": "factor = 1.0"}, "unchanged"),
        ({"red_team": "label_flip"}, r"the app of this node has not asked for it"),
    ],
)
def test_an_order_that_cannot_be_carried_out_is_no_honest_answer(config, reason):
    with pytest.raises(FedwardenError, match=reason):
        play(ask(), node(**config))
