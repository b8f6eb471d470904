"""The federation: the same bits from the same seed, after a kill and on any number of workers."""

import sqlite3
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedwarden.aggregators.trust import FLTrust
from fedwarden.core.errors import ConfigError
from fedwarden.policies.basic import FOR_GOOD
from fedwarden.sim.federation import Federation, simulate, summarise
from fedwarden.sim.metrics import detection
from fedwarden.sim.scenario import load_scenario
from fedwarden.sim.training.trainer import Shard, train_sequential
from fedwarden.store.checkpoint import checkpoint_path
from fedwarden.store.ledger import Ledger
from states import held

TABLE = {
    "name": "small",
    "rounds": 3,
    "data": {"clients": 5},
    "model": {"name": "mlp", "hidden": [8]},
    "train": {"momentum": 0.9, "workers": 1, "group": 2},
    "attacks": [{"name": "label_flip", "count": 1}],
    "guard": {"preset": "pid_made", "options": {"k": 1.2}},
}


def scenario_of(**changes):
    """The small scenario with keys of its tables replaced."""
    table = {**TABLE}
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(table.get(key), dict)
        table[key] = {**table[key], **value} if both else value
    return load_scenario(table)


def ledger_rows(folder, without=()):
    """Everything the ledger holds but for the time of day."""
    db = sqlite3.connect(folder / "ledger.sqlite")
    db.row_factory = sqlite3.Row
    tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    dropped = {"created", "finished", *without}
    found = {}
    for table in tables:
        rows = [dict(row) for row in db.execute(f"SELECT * FROM {table}")]
        found[table] = [{key: value for key, value in row.items() if key not in dropped} for row in rows]
    db.close()
    assert found["round"]
    assert found["watch"]
    return found


def last_checkpoint(folder, round):
    return held(checkpoint_path(folder, 1, round))


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The small scenario, run through."""
    folder = tmp_path_factory.mktemp("reference")
    return folder, simulate(scenario_of(), folder)


def test_the_same_seed_gives_the_same_bits(reference, tmp_path):
    folder, want = reference
    again = simulate(scenario_of(), tmp_path)
    assert torch.equal(again.params, want.params)
    assert ledger_rows(tmp_path) == ledger_rows(folder)
    assert last_checkpoint(tmp_path, 3) == last_checkpoint(folder, 3)


def test_so_do_two_workers(reference, tmp_path):
    folder, want = reference
    both = simulate(scenario_of(train={"workers": 2}), tmp_path)
    assert torch.equal(both.params, want.params)
    assert ledger_rows(tmp_path, ["config"]) == ledger_rows(folder, ["config"])
    assert last_checkpoint(tmp_path, 3) == last_checkpoint(folder, 3)


def test_global_generators_are_neither_used_nor_moved(reference, tmp_path):
    _, want = reference
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    result = simulate(scenario_of(), tmp_path)
    assert torch.equal(result.params, want.params)
    drawn = np.random.random()  # noqa: NPY002
    np.random.seed(99)  # noqa: NPY002
    assert drawn == np.random.random()  # noqa: NPY002


def test_a_summary_by_hand(reference):
    _, result = reference
    scores = np.array([[3.0, 2.0, 1.0, 0.0], [9.0, 2.0, 8.0, 1.0], [9.0, 9.0, 9.0, 8.0]])
    told = [(0.4, 2.0, 0.1), (0.95, 0.4, 0.2), (0.9, 0.5, 0.3)]
    records = [
        replace(
            result.records[0],
            round=t,
            client_ids=tuple("0123"),
            weights=np.ones(4),
            flagged=np.zeros(4, bool),
            watches=(replace(result.records[0].watches[0], name="far", scores=scores[t - 1]),),
            excluded=excluded,
            metrics={"accuracy": a, "loss": b, "attack_success": c},
        )
        for t, (a, b, c), excluded in zip((1, 2, 3), told, ((), ("0",), ("0", "2")), strict=True)
    ]
    truth = {"0": {2, 3}, "1": {3}}
    found = detection(records, truth)
    assert summarise(records, found, truth, 0.9, 0.5) == {
        "rounds": 3,
        "accuracy": 0.9,
        "loss": 0.5,
        "attack_success": 0.3,
        "rounds_to_target": 2,
        "rounds_to_target_loss": 2,
        "attackers": 2,
        "caught": 1,
        "wronged": 1,
        "precision": 0.5,
        "recall": 0.5,
        "f1": 0.5,
        "false_exclusions": 1,
        "let_in": 1,  # client 1 in round 3
        "last_catch": 2,
        "rounds_to_detection": {"0": 1},
        "excluded": {"0": 2, "2": 3},
        # attackers 9, then 9 9; honest 2 8 1, then 9 8: three ties in 15 pairs, and two of four in round 3
        "watches": {"far": {"auroc": 13.5 / 15, "auroc_by_round": 0.875, "tpr_at_1": 0.0, "tpr_at_5": 0.0}},
    }
    bare = summarise([], detection([], truth), truth, 0.9, 0.5)
    assert (bare["accuracy"], bare["loss"], bare["last_catch"], bare["rounds_to_target_loss"]) == (None,) * 4
    assert summarise(records, found, truth, None, None)["rounds_to_target"] is None
    assert summarise(records, found, truth, None, None)["rounds_to_target_loss"] is None


class Stop(Exception):
    pass


def stop_after(round, error=Stop):
    def on_round(record):
        if record.round == round:
            raise error

    return on_round


@pytest.mark.parametrize(("every", "stop"), [(1, 1), (1, 4), (2, 2), (2, 3), (3, 5), (3, 4)])
def test_resuming_ends_with_the_same_bits(every, stop, tmp_path):
    ramp = {"name": "label_flip", "clients": [3], "start": 2, "ramp": 2}
    scenario = scenario_of(
        rounds=6,
        checkpoint_every=every,
        attacks=[*FORGED, ramp],
        data={"validation": 0.1},
        train={"participation": 0.6},
        guard={"policy": "observe"},
    )
    simulate(scenario, tmp_path / "whole")
    with pytest.raises(Stop):
        simulate(scenario, tmp_path / "cut", on_round=stop_after(stop))
    with Ledger(tmp_path / "cut") as ledger:
        assert (ledger.run(1).state, ledger.last_round(1)) == ("failed", stop)
    begun = []
    simulate(scenario, tmp_path / "cut", resume=1, on_start=lambda run, federation: begun.append(federation.round))
    assert begun == [stop // every * every]
    assert ledger_rows(tmp_path / "cut") == ledger_rows(tmp_path / "whole")
    assert last_checkpoint(tmp_path / "cut", 6) == last_checkpoint(tmp_path / "whole", 6)


def test_a_run_is_resumed_with_its_own_settings_but_for_more_rounds(tmp_path):
    simulate(scenario_of(), tmp_path)
    with pytest.raises(ConfigError, match="run 1 was started with other settings of seed, train; resume it unchanged"):
        simulate(scenario_of(seed=1, train={"lr": 0.01}), tmp_path, resume=1)
    more = simulate(scenario_of(rounds=5), tmp_path, resume="small")
    assert [r.round for r in more.records] == [1, 2, 3, 4, 5]
    assert torch.equal(more.params, simulate(scenario_of(rounds=5), tmp_path / "whole").params)


def test_the_clients_accuracy_is_the_mean_of_their_own(tmp_path):
    federation = Federation(scenario_of(data={"validation": 0.2}, guard={"preset": "none", "options": {}}))
    record = next(federation.play())
    federation.model.load_state_dict(federation.engine.layout.unflatten(federation.params))
    w = federation.world
    own = [
        float((federation.model.eval()(w.x[rows]).argmax(dim=1) == w.y[rows]).double().mean())
        for rows in w.held_out.values()
    ]
    assert record.metrics["clients_accuracy"] == pytest.approx(np.mean(own))
    assert own[0] < min(own[1:])  # the attacker's own labels are wrong


@pytest.mark.parametrize(("share", "size"), [(0.01, 1), (0.4, 2), (0.5, 2), (0.8, 4), (1.0, 5)])
def test_partial_participation(share, size):
    scenario = scenario_of(rounds=8, train={"participation": share}, guard={"preset": "none", "options": {}})
    chosen = [r.client_ids for r in Federation(scenario).play()]
    assert all(len(c) == size == len(set(c)) for c in chosen)
    assert all(list(c) == sorted(c) for c in chosen)
    assert (len(set(chosen)) > 1) == (size < 5)
    assert chosen == [r.client_ids for r in Federation(scenario).play()]


def test_who_is_excluded_is_asked_no_more():
    federation = Federation(scenario_of(rounds=6, guard={"options": {"k": 1.2}}))
    gone = set()
    for record in federation.play():
        assert not gone & set(record.client_ids)
        assert gone <= set(record.excluded)
        gone = set(record.excluded)
        for client, weight in zip(record.client_ids, record.weights, strict=True):
            assert (weight == 0) == (client in gone)
    assert gone


def test_a_share_is_of_those_still_asked():
    federation = Federation(scenario_of(train={"participation": 0.5}, guard={"preset": "auto", "options": {}}))
    federation.warden.memory = replace(federation.warden.memory, excluded={"0": FOR_GOOD})
    record = next(federation.play())
    assert len(record.client_ids) == 2
    assert "0" not in record.client_ids


def test_a_round_in_which_nobody_is_asked():
    federation = Federation(scenario_of(data={"validation": 0.1}))
    before = federation.params.clone()
    federation.warden.memory = replace(federation.warden.memory, excluded=dict.fromkeys(federation.clients, FOR_GOOD))
    records = list(federation.play())
    assert [r.client_ids for r in records] == [(), (), ()]
    assert torch.equal(federation.params, before)
    assert all("the model is kept" in str(r.notes[0]) for r in records)
    assert all("clients_accuracy" not in r.metrics for r in records)
    assert records[0].metrics == records[2].metrics


def test_training_goes_on_where_play_was_left():
    """A generator that is closed early ends its workers and loses no round."""
    federation = Federation(scenario_of())
    whole = Federation(scenario_of())
    playing = federation.play()
    next(playing)
    playing.close()
    assert [r.round for r in federation.play()] == [2, 3]
    assert [r.round for r in whole.play()] == [1, 2, 3]
    assert torch.equal(federation.params, whole.params)


FORGED = [
    {"name": "sign_flip", "clients": [0], "start": 2, "scale": 2.0},
    {"name": "free_rider", "clients": [1], "start": 2},
    {"name": "gaussian", "clients": [2], "start": 2, "on": 1, "off": 1},
]


def test_updates_are_forged_before_the_guard_sees_them():
    """The signal is the distance of what was sent, and what was sent is in the model."""
    changes = {"guard": {"preset": "none", "options": {}}, "rounds": 2}
    honest, forged = (
        Federation(scenario_of(attacks=[], **changes)),
        Federation(scenario_of(attacks=FORGED[:1], **changes)),
    )
    first, same = next(honest.play()), next(forged.play())
    assert first.metrics["accuracy"] == same.metrics["accuracy"]
    assert torch.equal(honest.params, forged.params)  # before its start the attack is not there
    before = honest.params.clone()
    ids = list(honest.clients)
    models = torch.empty(5, honest.engine.layout.d)
    for i, client in enumerate(ids):
        honest.engine.train(before, 2, [client], models[i : i + 1])
    shares = np.array([len(honest.world.rows[c]) for c in ids]) / 1437
    sent = (models - before).double()
    sent[0] *= -2
    list(forged.play())
    want = before.double() + (torch.from_numpy(shares)[:, None] * sent).sum(dim=0)
    torch.testing.assert_close(forged.params.double(), want, atol=2e-6, rtol=0)


def test_attack_success_is_the_share_of_wanted_answers():
    attacks = [{"name": "backdoor", "count": 2, "target": 7, "size": 2}]
    federation = Federation(scenario_of(attacks=attacks, guard={"preset": "none", "options": {}}))
    record = next(federation.play())
    data = federation.world.data
    x = data.x_test[data.y_test != 7].clone()
    x[:, :, 6:, 6:] = 1.0
    federation.model.load_state_dict(federation.engine.layout.unflatten(federation.params))
    answers = federation.model.eval()(x).argmax(dim=1)
    assert record.metrics["attack_success"] == pytest.approx(float((answers == 7).double().mean()))


@pytest.mark.parametrize(
    ("attacks", "told"),
    [
        ([{"name": "label_flip", "count": 1}], False),
        ([{"name": "label_flip", "count": 1, "mode": "pairwise"}], True),
        ([{"name": "label_flip", "count": 0, "mode": "pairwise"}], False),
        ([{"name": "sign_flip", "count": 1}], False),
        ([], False),
    ],
)
def test_success_is_told_where_there_is_a_goal_and_detection_where_there_are_attacks(attacks, told):
    metrics = next(Federation(scenario_of(attacks=attacks)).play()).metrics
    assert ("attack_success" in metrics) == told
    assert ({"precision", "recall", "f1", "false_exclusions", "let_in"} <= set(metrics)) == bool(attacks)


def server_of(federation):
    """What the federation gave to the watches of its warden."""
    return next(w.signal.server for w in federation.warden.watches if w.name == "divergence")


@pytest.mark.parametrize(("reserve", "probe", "size"), [(60, 20, 20), (60, 128, 60), (200, 128, 128)])
def test_the_probe_is_of_samples_that_no_client_holds(reserve, probe, size):
    federation = Federation(
        scenario_of(data={"reserve": reserve, "probe": probe}, guard={"preset": "watch", "options": {}})
    )
    world, server = federation.world, server_of(federation)
    assert torch.equal(server.probe, world.x[world.reserve[:probe]])
    assert torch.equal(server.labels, world.y[world.reserve[:probe]])
    assert len(server.probe) == size
    assert server.model is federation.model
    held = {bytes(world.x[r].numpy()) for rows in world.rows.values() for r in rows}
    assert sum(bytes(x.numpy()) in held for x in server.probe) <= 1  # two digits of the set may be alike


def test_the_root_is_trained_on_the_reserve_alone_from_the_model_of_the_round():
    scenario = scenario_of(data={"reserve": 80}, guard={"preset": "none", "options": {}, "aggregator": "fltrust"})
    federation = Federation(scenario)
    root, engine, world = federation.warden.aggregator.root, federation.engine, federation.world
    shard = Shard("server", world.x, world.y, world.reserve)
    for t, params in ((1, federation.params), (3, federation.params * 0.5)):
        want = torch.empty(1, len(params))
        train_sequential(engine.model, engine.layout, params, [shard], engine.training, t, scenario.seed, want)
        assert torch.equal(root(params, t), want[0] - params)
    assert not torch.equal(root(federation.params, 1), root(federation.params, 2))  # other batches in another round


def test_fltrust_needs_a_reserve(tmp_path):
    guard = {"preset": "none", "options": {}, "aggregator": "fltrust"}
    with pytest.raises(
        ConfigError, match=r"fltrust needs a server with data of its own: in a scenario, set data\.reserve"
    ):
        Federation(scenario_of(guard=guard))
    result = simulate(scenario_of(guard=guard, data={"reserve": 100}), tmp_path)
    assert not any("kept" in str(note) for record in result.records for note in record.notes)
    losses = [record.metrics["loss"] for record in result.records]
    assert losses == sorted(losses, reverse=True)  # it learns


def test_training_the_root_moves_no_model_and_no_generator(tmp_path):
    """A server with data that nobody asks for changes no bit of a run on the same clients."""
    scenario = scenario_of(data={"reserve": 80}, guard={"preset": "none", "options": {}})
    plain, asked = Federation(scenario), Federation(scenario)
    root = FLTrust().equip(asked.server()).root
    for _ in range(2):
        a = next(plain.play())
        root(asked.params, asked.round + 1)
        b = next(asked.play())
        assert torch.equal(plain.params, asked.params)
        assert a.metrics == b.metrics


@pytest.mark.parametrize(
    ("data", "hidden", "text"),
    [
        ({"reserve": 50}, [], "divergence: no rectified unit found"),
        ({"reserve": 1}, [8], "divergence: a probe needs at least 2 samples to compare; got 1"),
        ({"reserve": 50, "probe": 0}, [8], "divergence needs a server with a model and a probe"),
    ],
)
def test_where_representations_cannot_be_watched_the_presets_do_without(data, hidden, text):
    model = {"name": "mlp", "hidden": hidden}
    for preset in ("auto", "watch"):
        federation = Federation(scenario_of(data=data, model=model, guard={"preset": preset, "options": {}}))
        record = next(federation.play())
        assert not {"representations", "divergence"} & {w.name for w in record.watches}
    own = {"preset": "none", "options": {}, "watches": [{"signal": "divergence"}]}
    with pytest.raises(ConfigError, match=text):
        Federation(scenario_of(data=data, model=model, guard=own))
