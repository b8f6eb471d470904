"""``fedwarden cleanse`` on real runs: what it writes, and what it refuses."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from fedwarden.cli import main
from fedwarden.sim.federation import simulate
from fedwarden.sim.scenario import load_scenario
from fedwarden.store.ledger import Ledger

TABLE = {
    "rounds": 3,
    "data": {"dataset": "digits", "clients": 6, "reserve": 200, "probe": 200},
    "model": {"name": "mlp", "hidden": [32]},
    "train": {"lr": 0.1, "momentum": 0.9, "batch_size": 16, "workers": 1},
    "attacks": [{"name": "backdoor", "count": 3}],
    "guard": "none",
}


def test_a_run_is_searched_and_stays_as_it_is(tmp_path, capsys):
    simulate(load_scenario(TABLE), tmp_path)
    before = (tmp_path / "ledger.sqlite").read_bytes()
    file = tmp_path / "model.safetensors"
    assert main(["cleanse", "1", "--home", str(tmp_path), "-o", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["run"] == 1
    assert set(found["before"]) == {"accuracy", "attack_success"}
    if found["removed"]:  # on 8 x 8 pixels most triggers hide among those of the classes
        assert set(load_file(file)) == {"1.weight", "1.bias", "3.weight", "3.bias"}
    else:
        assert not file.exists()
        assert found["before"] == found["after"]
    assert (tmp_path / "ledger.sqlite").read_bytes() == before


def test_what_was_taught_is_written_without_it(tmp_path, capsys, monkeypatch):
    """A single bright pixel decides: planted in the last checkpoint's model, found and unlearned."""
    import fedwarden.cli.cleanse as command

    simulate(load_scenario({**TABLE, "attacks": []}), tmp_path)
    newest = command.newest

    def planted(*args):
        params, notes = newest(*args)
        params = params.clone()
        first = params[: 32 * 64].view(32, 64)
        first[0], params[32 * 64] = 0.0, 0.0  # one hidden unit sees the first pixel alone
        first[:, 0] = 0.0
        first[0, 0] = 10.0
        out = params[32 * 64 + 32 : 32 * 64 + 32 + 320].view(10, 32)
        out[:, 0] = 0.0
        out[4, 0] = 10.0
        return params, notes

    monkeypatch.setattr(command, "newest", planted)
    file = tmp_path / "model.safetensors"
    assert main(["cleanse", "1", "--home", str(tmp_path), "-o", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["label"] for each in found["removed"]} == {4}
    assert all(each["after"] < each["before"] / 2 for each in found["removed"])
    assert found["after"]["accuracy"] > found["before"]["accuracy"] - 0.1
    made = load_file(file)
    assert torch.isfinite(made["3.weight"]).all()
    assert main(["cleanse", "1", "--home", str(tmp_path), "-o", str(file)]) == 2  # it is there
    assert "--force" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "words"),
    [({"reserve": 0}, "data.probe_from=noise"), ({"reserve": 40, "probe": 0}, "has no images")],
)
def test_a_server_without_images_is_told_what_to_add(tmp_path, capsys, data, words):
    simulate(load_scenario({**TABLE, "attacks": [], "rounds": 1, "data": {**TABLE["data"], **data}}), tmp_path)
    assert main(["cleanse", "1", "--home", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err


def test_a_run_of_a_server_and_one_that_does_not_exist_are_refused(tmp_path, capsys):
    simulate(load_scenario({**TABLE, "rounds": 1}), tmp_path, engine="flower")
    assert main(["cleanse", "1", "--home", str(tmp_path)]) == 2
    assert "architecture is not recorded" in capsys.readouterr().err
    assert main(["cleanse", "9", "--home", str(tmp_path)]) == 2
    assert "no run 9" in capsys.readouterr().err
    with Ledger(tmp_path, create=False) as ledger:
        assert len(ledger.runs()) == 1
