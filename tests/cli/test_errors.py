"""What a user can get wrong ends in one line on standard error and exit code 2."""

import pytest

import fedwarden.cli.run
import fedwarden.sim.tune


def one_line(result, *parts):
    code, out, err = result
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["rnu"], ["'run'", "--help"]),
        (["run"], ["scenario file", "--resume"]),
        (["run", "missing.toml"], ["missing.toml"]),
        (["runs"], ["no ledger"]),
        (["show"], ["'RUN'", "fedwarden show --help"]),
        (["show", "7", "--ronud", "3"], ["--round"]),
        (["list", "rules"], ["'rule'"]),
        (["tune", "missing.toml"], ["missing.toml"]),
        (["tune", "missing.toml", "--trials", "0"], ["--trials"]),
    ],
)
def test_bad_calls(call, args, parts):
    one_line(call(*args), *parts)


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        ("guard.prest=auto", ["'prest'", "'preset'"]),
        ("guard.preset=auot", ["'auot'", "'auto'"]),
        ("train.lr=fast", ["train.lr", "'fast'"]),
        ("train.device=cuda:99", ["cuda:99", "cpu"]),
        ("data.partition=given", ["without clients"]),
        ("data.dataset=digit", ["'digits'"]),
        ("model.hiden=3", ["'hidden'"]),
        ("rounds", ["a.b=c"]),
    ],
)
def test_bad_settings(call, tiny, setting, parts):
    one_line(call("run", tiny, "--set", setting), *parts)


def test_a_file_that_is_not_toml(call, tmp_path):
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    one_line(call("run", tmp_path / "bad.toml"), "not valid TOML")


def test_a_workspace_that_cannot_be_written(call, tiny, tmp_path):
    (tmp_path / "file").write_text("")
    one_line(call("run", tiny, "--home", tmp_path / "file" / "below"), "below")


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["show", "99"], ["99", "1 (tiny)"]),
        (["show", "1", "--round", "9"], ["no round 9"]),
        (["run", "--resume", "99"], ["99"]),
        (["replay", "1", "--rule", "gesdd"], ["'gesd'"]),
        (["replay", "1", "--set", "rul.k=3"], ["'rule'"]),
        (["replay", "1", "--set", "rule.kk=3"], ["'kk'"]),
        (["replay", "1", "--preset", "auto"], ["centroid_distance"]),
    ],
)
def test_bad_calls_on_a_recorded_run(call, recorded, args, parts):
    one_line(call(*args, "--home", recorded), *parts)


def test_replay_of_a_run_without_signals(call, tiny):
    assert call("run", tiny, "--quiet", "--set", "guard.preset=none", "--set", "guard.options={}")[0] == 0
    one_line(call("replay", "1"), "no signals", "observe")


def test_tune_without_optuna(call, tiny, monkeypatch):
    monkeypatch.setattr(fedwarden.sim.tune, "find_spec", lambda name: None)
    one_line(call("tune", tiny), "pip install 'fedwarden[tune]'")


def test_tune_without_attackers(call, tiny):
    one_line(call("tune", tiny, "--set", "attacks=[]"), "[[attacks]]")
    one_line(call("tune", tiny, "--set", "attacks.0.start=4"), "[[attacks]]", "by round 3")
