"""The adversary's suite: its cases, its runs, and its verdicts from made-up results."""

from __future__ import annotations

import json

import pytest

from fedwarden.core.errors import ConfigError
from fedwarden.sim.scenario import load_scenario
from fedwarden.studies.attack_cases import NO_ATTACK, Case, choose, suite
from fedwarden.studies.attack_suite import (
    Outcome,
    alone_cell,
    attack_cell,
    cells,
    headline,
    outcomes,
    page,
    play,
    ranked,
    row,
    setting,
    study_name,
    verdict,
)

TINY = {
    "rounds": 2,
    "data": {"clients": 5},
    "model": {"name": "mlp", "hidden": [4]},
    "train": {"workers": 1},
    "guard": {"preset": "none"},
}


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 20, 100])
@pytest.mark.parametrize("rounds", [1, 4, 30])
def test_every_case_is_a_scenario_with_a_minority_of_attackers(n, rounds):
    cases = suite(n, rounds)
    assert len({c.name for c in cases}) == len(cases)
    assert {c.name for c in cases} == {c.name for c in suite(20, 20)}  # what cannot be run has a row too
    for case in cases:
        if case.skipped:
            continue
        scenario = load_scenario({"rounds": rounds, "data": {"clients": n}, "attacks": case.attacks})
        for attack in scenario.attacks:
            attack.make("attack")
        assert 2 * len(case.attackers) < n
        assert bool(scenario.truth()) == (case.name != NO_ATTACK)


def test_nothing_is_left_out_where_there_is_room():
    assert [c.name for c in suite(20, 20) if c.skipped] == []
    found = {c.name: c for c in suite(20, 20)}
    assert len(found) == 58
    assert found["on-off 1-5, 30 %, inflated counts"].attacks == (
        {"name": "sign_flip", "scale": 3.0, "clients": [0, 1, 2, 3, 4, 5], "on": 1, "off": 5, "claims": 1e6},
    )


def test_three_in_turns_never_attack_together_and_always_one_does():
    (case,) = choose(suite(20, 20), ["in turns"])[1:]
    scenario = load_scenario({"data": {"clients": 20}, "attacks": case.attacks})
    truth = scenario.truth()
    assert truth["0"] == {1, 2, 7, 8, 13, 14, 19, 20}
    assert sorted(t for rounds in truth.values() for t in rounds) == list(range(1, 21))


@pytest.mark.parametrize(
    ("n", "rounds", "name", "reason"),
    [
        (2, 20, "copycat", "needs 3 clients, so that attackers are fewer than half; there are 2"),
        (4, 20, "sign flip x3, 30 %", "30 % of 4 clients are 1 attacker"),
        (4, 20, "IPM, 30 %", "needs 2 attackers; 30 % of 4 clients are 1"),
        (8, 20, "ALIE, 30 %", "2 of 8 clients are too few to hide among the others: they would send the mean"),
        (5, 20, "in turns", "needs 7 clients, so that 3 are fewer than half; there are 5"),
        (20, 4, "in turns", "needs 6 rounds; there are 4"),
        (20, 5, "on-off 5-5, 1 attacker", "does not pause in 5 rounds"),
        (4, 20, "strongest, slow drift, 30 %", "30 % of 4 clients are 1 attacker"),
        (20, 2, "strongest, on-off 2-2, 30 %", "does not pause in 2 rounds"),
    ],
)
def test_what_cannot_be_run_says_why(n, rounds, name, reason):
    assert {c.name: c.skipped for c in suite(n, rounds)}[name] == reason


def test_cases_by_name_or_by_words():
    cases = suite(20, 20)
    assert [c.name for c in choose(cases, ["COPYCAT"])] == [NO_ATTACK, "copycat"]  # exactly this one
    assert len(choose(cases, ["on-off 2-3"])) == 1 + 4
    assert choose(cases, []) == list(cases)
    with pytest.raises(ConfigError, match="there is no case 'slow drfit'; did you mean 'slow drift'"):
        choose(cases, ["slow drfit"])


def test_the_honest_alone_are_run_once_for_a_group_of_attackers():
    cases = choose(suite(20, 6), ["copycat x3", "scaling", "sign flip x3, 1 attacker", "backdoor, 1"])
    made = cells(cases, TINY, 6, [3, 4])
    assert len({json.dumps(cell, sort_keys=True) for cell, _ in made}) == len(made) == 2 * (5 + 2)
    dormant = [run for cell, run in made if cell.get("goal")]
    assert [(r["without"], r["scenario"]["attacks"][0]["start"]) for r in dormant] == [([0], 7)] * 2
    assert all(run["scenario"]["seed"] == cell["seed"] for cell, run in made)


def test_another_configuration_has_another_name():
    name = study_name(load_scenario(TINY))
    same = [{"seed": 5}, {"name": "x"}, {"train": {"workers": 2}}, {"attacks": [{"name": "copy", "count": 1}]}]
    other = [{"rounds": 3}, {"guard": {"preset": "auto"}}, {"data": {"clients": 6}}, {"train": {"lr": 0.2}}]
    assert {study_name(load_scenario({**TINY, **change})) for change in same} == {name}
    assert len({name, *(study_name(load_scenario({**TINY, **change})) for change in other)}) == 5


def test_clients_that_are_left_out_change_nothing():
    """The attackers' replies are not let in, so whatever they send the model is the same, and nobody is wronged."""
    flips = {**TINY, "attacks": [{"name": "sign_flip", "clients": [0], "scale": 50.0}]}
    quiet, loud, inside = (
        play({"scenario": table, "without": without}) for table, without in ((TINY, [0]), (flips, [0]), (flips, []))
    )
    assert quiet["late_accuracy"] == loud["late_accuracy"] != inside["late_accuracy"]
    assert quiet["loss"] == loud["loss"]
    assert (quiet["wronged"], loud["caught"]) == (0, 0)


def test_a_run_that_cannot_be_is_told():
    wide = {**TINY, "attacks": [{"name": "backdoor", "clients": [0], "size": 99}]}
    assert "does not fit" in play({"scenario": wide, "without": []})["refused"]


def made(case, seeds, accuracies, alone=(), success=None, wronged=0, caught=0):
    found = []
    for i, seed in enumerate(seeds):
        result = {
            "late_accuracy": accuracies[i],
            "attackers": len(case.attackers),
            "caught": caught,
            "wronged": wronged,
            "attack_success": success,
        }
        found.append({"cell": attack_cell(case, seed), "result": result})
        if case.attacks:
            beside = {**result, "late_accuracy": alone[i], "attack_success": 0.1}
            found.append({"cell": alone_cell(case, seed), "result": beside})
    return found


def test_verdicts_by_hand():
    names = {c.name: c for c in suite(20, 20)}
    clean, flip, door, copy = (names[n] for n in (NO_ATTACK, "sign flip x3, 30 %", "backdoor, 1 attacker", "copycat"))
    skipped = Case("other", skipped="too few")
    seeds = [0, 1, 2]
    results = [
        *made(clean, seeds, [0.95, 0.96, 0.97]),
        *made(flip, seeds, [0.90, 0.91, 0.92], [0.91, 0.91, 0.91], caught=5),  # five points below, in every seed
        *made(door, seeds, [0.95, 0.96, 0.97], [0.95, 0.95, 0.95], success=0.9),
        *made(copy, seeds, [0.94, 0.95, 0.96], [0.95, 0.95, 0.95], wronged=1),
    ]
    found = outcomes([clean, copy, flip, door, skipped], results, seeds)
    broken, held, left = ranked(found)
    assert [(o.case.name, verdict(o)) for o in broken] == [
        ("backdoor, 1 attacker", "its aim was reached 80.0 ± 0.0 points beyond chance"),
        ("sign flip x3, 30 %", "cost 5.0 ± 0.0 points"),
        ("copycat", "wronged 3 honest clients in 3 runs"),
    ]
    assert [o.case.name for o in held] == [NO_ATTACK]
    assert [verdict(o) for o in left] == ["not run: too few"]
    assert row(broken[1])[2:6] == ["-5.0 ± 0.0", "+0.0 ± 2.5", "5 of 6", "0"]  # t(2) = 4.30, deviation 1: 2.48
    assert headline(found, 3) == "1 of 4 cases held, 1 not run."
    text = page(found, load_scenario(TINY), 3)
    assert text.index("Did not hold") < text.index("## Held") < text.index("## Not run")
    assert f"`{setting(flip.attacks)}`" in text


def test_a_cost_that_may_be_chance_is_said_to_be():
    case = Case("a", ({"name": "copy", "clients": [0]},))
    unsure = Outcome(case, (0.9,) * 3, (-4.0, 0.0, 1.0), (0.0,) * 3, 1, (0,) * 3, (0,) * 3)
    assert headline([unsure], 3) == "1 of 1 case held; the interval of 1 of those that held reaches beyond 2 points."
    single = Outcome(case, (0.9,), (-1.0,), (0.0,), 1, (0,), (0,))
    assert headline([single], 1).startswith("1 of 1 case held; 1 seed says nothing about chance")


def test_what_failed_comes_first():
    case = Case("a", ({"name": "copy", "clients": [0]},))
    costly = Outcome(Case("b", case.attacks), (0.1,), (-80.0,), (0.0,), 1, (0,), (0,))
    broken, held, _ = ranked([costly, Outcome(case, failed="no numbers")])
    assert [verdict(o) for o in broken] == ["failed: no numbers", "cost 80.0 points"]
    assert held == []
