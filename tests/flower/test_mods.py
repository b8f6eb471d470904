"""The auditor as a client mod says what the auditor says, though a new process answers every message."""

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

import fedwarden as fw
from fedwarden.flower import audit_mod
from fedwarden.store.ledger import Ledger

from .nodes import asking, of_node, through

PROBE = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32))


def net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def auditor(record=None):
    return fw.Auditor(net(0), PROBE, n=4, record=record)


def own_model(state):
    """What this node makes of a global model."""
    return {name: 0.9 * value + 0.01 for name, value in state.items()}


def answer(message, here, record):
    def step(arrays):
        return ArrayRecord(own_model(arrays.to_torch_state_dict()))

    return through(audit_mod(lambda _: auditor(), record), message, here, step)


@pytest.mark.parametrize("absent", [None, 4])
def test_the_mod_sees_what_an_auditor_in_the_loop_sees(absent):
    models = [{k: v.detach().clone() for k, v in net(t).state_dict().items()} for t in range(8)]
    expected, seen = [], []
    direct = auditor(record=expected.extend)
    here = of_node()
    for t in range(1, 8):  # the model sent in round t is that of the end of round t - 1
        if t > 1 and absent != t:
            direct.observe(t - 1, models[t - 1], None if absent == t - 1 else own_model(models[t - 2]))
        if absent != t:
            answer(asking(t, models[t - 1]), here, lambda _, found: seen.extend(found))
            answer(asking(t, models[t], kind="evaluate"), here, lambda _, found: seen.extend(found))
    assert len(seen) == len(expected) > 20
    for a, b in zip(seen, expected, strict=True):
        assert (a.round, a.source, a.metric, a.layer, a.alarm) == (b.round, b.source, b.metric, b.layer, b.alarm)
        assert a.value == pytest.approx(b.value, nan_ok=True, abs=1e-9)
        assert a.score == pytest.approx(b.score, nan_ok=True, rel=1e-6)


def test_a_server_that_repeats_rounds_is_not_observed_twice():
    seen, here = [], of_node()
    models = [net(t).state_dict() for t in range(4)]
    for t in (1, 2, 3, 2, 3, 4):
        answer(asking(t, models[t - 1]), here, lambda _, found: seen.extend(found))
    assert sorted({o.round for o in seen}) == [2, 3]
    assert len({(o.round, o.source, o.metric, o.layer) for o in seen}) == len(seen)


def test_by_default_the_node_has_a_ledger_of_its_own():
    here = of_node()
    models = [net(t).state_dict() for t in range(5)]
    for t in range(1, 5):
        answer(asking(t, models[t - 1]), here, None)
    with Ledger() as ledger:
        (run,) = ledger.runs()
        seen = ledger.observations(run.id, "7")
    assert {o.round for o in seen} == {2, 3}
    direct = auditor()
    direct.observe(1, models[1], own_model(models[0]))
    expected = direct.observe(2, models[2], own_model(models[1]))
    assert seen[0].value == pytest.approx(expected[0].value)


def test_an_audit_that_fails_does_not_disturb_the_training():
    here = of_node()
    answer(asking(1, net(1).state_dict()), here, None)
    reply = answer(asking(2, {"another": torch.zeros(3)}), here, None)
    assert reply.has_content()
