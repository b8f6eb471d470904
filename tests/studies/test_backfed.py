"""BackFed's setting: rules by hand, batches as torch's loader draws them, and the schedule of its authors' logs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from fedwarden.core.errors import ConfigError
from fedwarden_research.studies import backfed, backfed_rules
from fedwarden_research.studies.backfed_training import BATCH, SEED, Setting, schedule, steps
from fedwarden_research.studies.plan import Asked

BY_CLASS = np.repeat(np.arange(10), 5000)


def replies(updates, buffers=None, held=None, batches=None, attackers=0):
    x, one = torch.tensor(updates), [1.0] * len(updates)
    rest = [torch.tensor(v or d) for v, d in ((buffers, [[0.0]] * len(updates)), (held, one), (batches, one))]
    return backfed_rules.Replies(x, *rest, attackers, torch.zeros(x.shape[1]), [1] * x.shape[1])


def test_clipping_shortens_weights_alone_and_weighs_by_images():
    given = replies([[6.0, 0.0], [0.0, 2.0]], [[10.0], [30.0]], held=[300.0, 100.0])
    weights, buffers = backfed_rules.norm_clipping(given, 0.1, 3.0)
    assert weights.tolist() == pytest.approx([0.1 * 0.75 * 3, 0.1 * 0.25 * 2])
    assert buffers.tolist() == pytest.approx([0.1 * (0.75 * 10 + 0.25 * 30)])


def test_the_median_is_the_lower_one_and_a_fifth_is_trimmed_on_each_side():
    column = [[float(v), 0.0] for v in (0, 1, 2, 3, 4, 5, 6, 7, 8, 1000)]
    given = replies(column, [[v[0]] for v in column])
    assert backfed_rules.median(given, 1.0)[0].tolist() == [4.0, 0.0]
    assert [rows.tolist() for rows in backfed_rules.trimmed_mean(given, 1.0)] == [[4.5, 0.0], [4.5]]  # of 2 to 7
    assert backfed_rules.fedavg(given, 0.1)[1].tolist() == pytest.approx([0.1 * 1036 / 10])


def test_counters_of_batches_give_an_attacker_away_to_multi_krum():
    rows = [
        [0.0, 0.0],
        [0.1, 0.0],
        [0.0, 0.1],
        [2.0, 0.0],
        [0.0, 0.0],
    ]  # the fourth is honest and far, the last attacks
    given = replies(rows, batches=[8.0, 8.0, 8.0, 8.0, 24.0], attackers=1)
    with_counters, _ = backfed_rules.multi_krum(given, 1.0)
    without, _ = backfed_rules.multi_krum(given, 1.0, counters=False)
    assert with_counters.tolist() == pytest.approx([2.1 / 4, 0.1 / 4])
    assert without.tolist() == pytest.approx([0.1 / 4, 0.1 / 4])


def test_flame_compares_the_last_layers_and_cuts_to_the_median_length():
    rows = [[3.0, 1.0, 0.0], [0.0, 1.0, 0.1], [1.0, 1.0, -0.1], [4.0, -1.0, 0.0]]
    given = replies(rows, [[1.0], [2.0], [6.0], [100.0]])
    lengths = np.linalg.norm(rows, axis=1)
    limit = sorted(lengths)[1]  # torch's median is the lower one
    expected = np.mean(
        [np.array(row) * min(1, limit / n) for row, n in zip(rows[:3], lengths[:3], strict=True)], axis=0
    )
    weights, buffers = backfed_rules.flame(given, 0.1, noise=0.0)
    assert weights.tolist() == pytest.approx((0.1 * expected).tolist(), rel=1e-5)
    assert buffers.tolist() == pytest.approx([0.1 * 3.0])


class Numbers(Dataset):
    """Each item is its number; mirroring, which draws one value for it, makes it negative."""

    def __init__(self, part):
        self.part = part

    def __len__(self):
        return len(self.part)

    def __getitem__(self, i):
        return -self.part[i] if torch.rand(1) < 0.5 else self.part[i]


@pytest.mark.parametrize("n", [5, 129, 577])
def test_batches_and_mirrorings_are_those_of_a_loader_seeded_in_the_same_way(n):
    part = np.arange(n, 0, -1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED + 1)
        loader = DataLoader(Numbers(part), batch_size=BATCH, shuffle=True)
        expected = [batch.tolist() for _ in range(2) for batch in loader if len(batch) > 1]
    made = steps(part, False, SEED + 1)
    signed = torch.where(made.mirrored, -made.index, made.index)
    assert [signed[k, :size].tolist() for k, size in enumerate(made.sizes)] == expected


CALM = [  # training accuracy of the honest clients in rounds 2001 to 2006 of pretrain_robust_aggregation, norm clipping
    (0.9215610510046368, None), (0.914595402728462, None), (0.9454, None), (0.9844611528822055, None),
    (0.9608760763758892, None), (0.9124211961151815, None),
]  # fmt: skip
ATTACKED = [  # and in rounds 2301 to 2308 of robust_aggregation_cifar10, norm clipping; with that of the attackers
    (0.7947305389221557, None), (0.7181685134852603, 0.8626760563380281), (0.7676120768526989, 0.8678343949044586),
    (0.8096199125462495, 0.7728613569321534), (0.7396627860297069, 0.8694444444444445), (0.7602162162162163, None),
    (0.7549155908639523, None), (0.7752111276701441, 0.8908450704225352),
]  # fmt: skip


@pytest.mark.parametrize(("attack", "log"), [(False, CALM), (True, ATTACKED)])
def test_clients_hold_and_are_asked_what_the_logs_show(attack, log):
    parts, asked = schedule(BY_CLASS, attack, len(log))
    assert sorted(np.concatenate(parts).tolist()) == list(range(50_000))
    fitting = 0
    for (ids, bad), accuracies in zip(asked, log, strict=True):
        if any(len(parts[c]) % BATCH == 1 for c in ids):
            continue  # an image is left out, so that the logged mean is not a share of all images
        for group, accuracy in zip((set(ids) - bad, bad), accuracies, strict=True):
            assert bool(group) == (accuracy is not None)
            hits = (accuracy or 0) * sum(len(parts[c]) for c in group)
            assert hits == pytest.approx(round(hits), abs=1e-6)
        fitting += 1
    assert fitting >= 5
    assert schedule(BY_CLASS, attack, len(log))[1] == asked


def test_an_attack_deals_class_0_anew_and_no_other():
    owner = {}
    for name, (parts, _) in {"before": schedule(BY_CLASS, False, 1), "attack": schedule(BY_CLASS, True, 1)}.items():
        owner[name] = np.empty(50_000, dtype=int)
        for client, part in enumerate(parts):
            owner[name][part] = client
    moved = owner["before"] != owner["attack"]
    assert 0.5 < moved[:5000].mean() < 0.6
    assert not moved[5000:].any()


@pytest.fixture(scope="module")
def setting():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 800)
    data = [torch.from_numpy(rng.random((n, 3, 32, 32), dtype=np.float32)) for n in (800, 60)]
    return Setting((data[0], torch.from_numpy(labels), data[1], torch.arange(60) % 10), "cpu", most=24, width=2)


def test_a_step_is_that_of_sgd_and_one_that_overflows_moves_running_statistics_alone(setting):
    place, made = setting.places[0], steps(np.arange(70), True, 1)
    place.load(made, True, *setting.start, half=True)
    twin = setting.made().train()
    twin.load_state_dict(place.net.state_dict(), strict=False)
    sgd = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for k, size in enumerate(made.sizes[:3]):
        i, many = made.index[k, :size], 20 * size // 64
        x = torch.where(made.mirrored[k, :size].view(-1, 1, 1, 1), setting.x[i].flip(3), setting.x[i])
        y = setting.y[i].clone()
        x[:many, :, 25:30, 25:30], y[:many] = 1.0, 2
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(twin((x - setting.mean) / setting.std), y).backward()
        sgd.step()
        place.play(size, True)
    expected = torch.cat([p.detach().reshape(-1) for p in twin.parameters()])
    assert torch.allclose(place.params, expected, atol=1e-4)
    before, moving = place.params.clone(), place.buffers.clone()
    place.scale.fill_(float("inf"))
    place.play(made.sizes[3], True)
    assert torch.equal(place.params, before)
    assert not torch.equal(place.buffers, moving)


def test_training_goes_on_where_it_was_cut_off_and_a_rule_starts_from_it(setting, tmp_path):
    once, twice = (backfed.Options(checkpoint=str(tmp_path / f"{name}.npz")) for name in ("once", "twice"))
    backfed.train(setting, 1, twice)
    assert backfed.train(setting, 2, twice) == backfed.train(setting, 2, once)
    again = [backfed.attack(setting, "Multi-Krum", 1, 1, once) for _ in range(2)]
    assert again[0] == again[1]
    assert again[0]["best"] == 1
    assert len(again[0]["rounds"]) == 1
    with pytest.raises(ConfigError, match="bench backfed --case training"):
        backfed.attack(setting, "median", 1, 1, backfed.Options(checkpoint=str(tmp_path / "none.npz")))


def test_the_plan_trains_or_attacks_and_refuses_what_it_does_not_know():
    assert [cell["defence"] for cell, _ in backfed.plan(Asked(case=["training"])).cells] == ["training"]
    made = backfed.plan(Asked(defence=["median"], settings=["batches=fresh"]))
    assert [(cell["defence"], cell["batches"], cell["rounds"]) for cell, _ in made.cells] == [("median", "fresh", 100)]
    row = {"cell": made.cells[0][0], "result": {"accuracy": 0.5, "success": 0.25, "trained": 0.75}}
    assert made.told([row]).splitlines()[-1] == "| median | 48.5 | 50.0 | 33.3 | 25.0 | 74.9 | 75.0 |"
    assert "fedwarden bench backfed --defence median --set batches=fresh" in made.page([row])
    with pytest.raises(ConfigError, match="batches"):
        backfed.plan(Asked(settings=["batches=new"]))
