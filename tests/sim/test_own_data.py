"""Data and models of one's own: real files, through the command line."""

import csv
import gzip
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedwarden.cli import main
from fedwarden.cli.run import Monitor
from fedwarden.core import registry
from fedwarden.core.errors import ConfigError, FedwardenError, MissingExtra
from fedwarden.sim.data.world import build_world, load_data, settle
from fedwarden.sim.federation import Federation
from fedwarden.sim.recorded import truth_of
from fedwarden.sim.scenario import load_scenario
from fedwarden.store.ledger import Ledger
from own_hospitals import NAMES, hospitals

MODULE = """
import torch
from torch import nn

def load(sites=6, folder=None):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(sites, 40, 5, generator=rng)
    return {f"site {i}": (x[i], (x[i, :, 0] > 0).long()) for i in range(sites)}

def broken():
    return {}["nothing"]

class Net(nn.Module):
    def __init__(self, shape, classes, width=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(shape[0], width), nn.BatchNorm1d(width), nn.Linear(width, classes))

    def forward(self, x):
        return self.layers(x)

class Two(Net):
    def __init__(self):
        super().__init__((5,), 7)

def halves(data, n, rng):
    return torch.arange(len(data.y_train)).chunk(n)

def wrong(data, n):
    return []

def nobody(data, n, rng):
    return [[] for _ in range(n)]

def beyond(data, n, rng):
    return [[10_000] for _ in range(n)]
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch, forgetful):
    """A folder and a workspace of its own."""
    monkeypatch.setenv("FEDWARDEN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("FEDWARDEN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(capsys):
    def run(*args):
        code = main([str(a) for a in args])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def write(path, dataset, **more):
    lines = {"rounds": 6, "model": '{name = "mlp", hidden = [8]}', "train": "{epochs = 2, batch_size = 8, workers = 1}"}
    lines["data"] = f"{{dataset = {dataset}{more.pop('data', '')}}}"
    path.write_text("\n".join(f"{key} = {value}" for key, value in {**lines, **more}.items()))
    return path


def save_npz(folder, **changes):
    x, y, owner = hospitals()
    arrays = {"features": x, "labels": y, "clients": owner, **changes}
    np.savez(folder / "mine.npz", **{key: value for key, value in arrays.items() if value is not None})
    return write(folder / "mine.toml", '{name = "npz", file = "mine.npz"}')


def save_csv(path):
    x, y, owner = hospitals()
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["age", "sex", "hospital", "ill", "pressure"])
        for row, label, client in zip(x, y, owner, strict=True):
            rows.writerow([50 + 9 * row[0], "fm"[int(row[2] > 0)], client, ["no", "yes"][label], row[1]])


def images(folder, clients=("",), size=8):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    rng = np.random.default_rng(0)
    for client in clients:
        for kind, light in (("bright", 120), ("dark", 0)):
            (folder / client / kind).mkdir(parents=True)
            for i in range(12):
                pixels = rng.integers(light, light + 130, size=(size, size, 3)).astype(np.uint8)
                image.fromarray(pixels).save(folder / client / kind / f"{i}.png")


def test_an_npz_file_names_its_clients_in_the_verdict(call, place, monkeypatch):
    file = save_npz(place)
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")  # the file is found beside the TOML file
    code, out, _ = call("run", file)
    assert code == 0
    assert re.search(r"1 of 8 clients was in doubt: west on trial in \d+", out)
    assert "honest" not in out  # nobody knows the truth of one's own data
    assert "west" in call("show", 1)[1]
    with Ledger(place / "home") as ledger:
        assert ledger.run(1).config["data"]["names"] == sorted(NAMES)
        assert ledger.run(1).config["data"]["clients"] == 8


def test_an_attacker_of_named_clients_is_known_by_its_name(call, place):
    save_npz(place, labels=hospitals(turned="nobody")[1])
    file = place / "mine.toml"
    file.write_text(
        file.read_text() + '\nattacks = [{name = "label_flip", clients = [6]}, {name = "sign_flip", count = 1}]\n'
    )
    code, out, _ = call("run", file)
    assert code == 0
    assert "2 attackers: " in out
    with Ledger(place / "home") as ledger:
        assert truth_of(ledger.run(1)) == {sorted(NAMES)[6], sorted(NAMES)[0]}


def test_rows_without_clients_are_divided_by_any_partition(place):
    file = save_npz(place, clients=None)
    world = build_world(load_scenario(file, ["data.clients=5", "data.partition=dirichlet"]))
    assert list(world.rows) == ["0", "1", "2", "3", "4"]
    assert sum(map(len, world.rows.values())) == 256


def test_another_partition_wins_over_the_clients_of_the_file(place):
    world = build_world(load_scenario(save_npz(place), ["data.clients=5", "data.partition=iid"]))
    assert list(world.rows) == ["0", "1", "2", "3", "4"]
    first = build_world(load_scenario(save_npz(place), ["data.partition={name = 'given', first = 6}"]))
    assert list(first.rows) == ["west", "wood"]
    named = load_scenario(save_npz(place), ["data.clients=2", "data.partition=iid", 'data.names=["a", "b"]'])
    assert list(build_world(named).rows) == ["a", "b"]


def test_fewer_clients_than_the_file_names_are_taken_only_where_a_partition_says_which(place):
    file = save_npz(place)
    with pytest.raises(ConfigError, match=r"expected 8 clients, as it names; data.clients = 5: .*\"given\".*\"iid\""):
        build_world(load_scenario(file, ["data.clients=5"]))
    assert len(build_world(load_scenario(file, ["data.clients=8"])).rows) == 8
    world = build_world(load_scenario(file, ["data.clients=2", "data.partition=given"]))
    assert list(world.rows) == sorted(set(OWNER.tolist()))[:2]


def test_a_fifth_of_every_clients_rows_is_held_back(place):
    data = load_data(load_scenario(save_npz(place)))
    assert [len(rows) for rows in data.clients] == [32] * 8
    assert len(data.y_test) == 64
    x, _, owner = hospitals()
    east = data.x_train[data.clients[data.names.index("east")]]
    found = (east[:, None] == torch.from_numpy(x[owner == "east"])).all(dim=2).any(dim=1)
    assert found.all()


def test_a_test_file_of_its_own(place):
    x, y, _ = hospitals()
    file = save_npz(place)
    np.savez(place / "test.npz", features=x[:30] + 1, labels=y[:30])
    data = load_data(load_scenario(file, ["data.dataset.test=test.npz"]))
    assert torch.equal(data.x_test, torch.from_numpy(x[:30] + 1))
    assert len(data.x_train) == 320


def test_images_of_eight_bits_get_their_channels_first(place):
    x = np.arange(20 * 4 * 5 * 3, dtype=np.uint8).reshape(20, 4, 5, 3)
    data = load_data(load_scenario(save_npz(place, features=x, labels=np.arange(20) % 3, clients=None)))
    assert data.shape == (3, 4, 5)
    assert float(data.x_train.max()) <= 1
    assert torch.isin((data.x_train[0] * 255).round(), torch.from_numpy(x.astype(np.float32)).unique()).all()


def test_words_as_labels_are_classes_in_the_order_of_the_alphabet(place):
    words = np.where(hospitals()[1] == 1, "ill", "healthy")
    data = load_data(load_scenario(save_npz(place, labels=words)))
    plain = load_data(load_scenario(save_npz(place)))
    assert data.classes == 2
    assert torch.equal(data.y_train, plain.y_train)


def test_a_csv_file_with_columns_for_label_and_client(call, place):
    save_csv(place / "mine.csv")
    dataset = '{name = "csv", file = "mine.csv", label = "ill", client = "hospital"}'
    code, out, _ = call("run", write(place / "mine.toml", dataset))
    assert code == 0
    assert re.search(r"1 of 8 clients was in doubt: west on trial in \d+", out)
    data = load_data(load_scenario(place / "mine.toml"))
    assert data.shape == (4,)  # age, pressure, and two sexes
    torch.testing.assert_close(data.x_train[:, 0].mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(data.x_train[:, 0].std(unbiased=False), torch.tensor(1.0), atol=1e-5, rtol=0)
    for drop in ('["sex"]', "sex"):  # one column needs no list
        assert load_data(load_scenario(place / "mine.toml", [f"data.dataset.drop={drop}"])).shape == (2,)


@pytest.mark.parametrize("sign", [";", "\t"])
def test_a_table_as_other_countries_write_it(place, sign):
    dataset = '{name = "csv", file = "mine.csv", label = "ill", client = "hospital"}'
    save_csv(place / "mine.csv")
    file = write(place / "mine.toml", dataset)
    usual = load_data(load_scenario(file))
    text = (place / "mine.csv").read_text().replace(",", sign).replace(".", ",")
    assert ",5" in text  # a decimal comma
    (place / "mine.csv").write_text("\ufeff" + text, encoding="utf-8")  # and the mark that spreadsheets put first
    other = load_data(load_scenario(file))
    assert torch.equal(usual.x_train, other.x_train)
    assert torch.equal(usual.y_test, other.y_test)
    assert usual.names == other.names


def test_numbers_of_a_table_are_for_regression(call, place):
    (place / "mine.csv").write_text("a,label\n" + "".join(f"{i % 7},{i % 3 + 0.5}\n" for i in range(60)))
    file = write(place / "mine.toml", '{name = "csv", file = "mine.csv"}', data=", clients = 4", task='"regression"')
    assert call("run", file)[0] == 0
    (place / "mine.csv").write_text("a,label\n" + "".join(f"{i % 7},{i % 3}\n" for i in range(60)))
    assert "numbers = true" in call("run", file)[2]
    assert call("run", file, "--set", "data.dataset.numbers=true")[0] == 0


@pytest.mark.parametrize("written", ["{}", "{}.0", "{}e0"])
@pytest.mark.parametrize("values", [(0, 1), (1, 2), (-1, 1), (2, 10)])
def test_the_classes_of_a_table_are_the_whole_numbers_found(place, written, values):
    labels = [values[i % 3 == 0] for i in range(60)]
    (place / "mine.csv").write_text(
        "a,label\n" + "".join(f"{i % 7},{written.format(y)}\n" for i, y in enumerate(labels))
    )
    file = write(place / "mine.toml", '{name = "csv", file = "mine.csv"}', data=", clients = 4")
    data = load_data(load_scenario(file))
    assert data.classes == 2
    assert int(data.y_train.sum() + data.y_test.sum()) == 20  # a third of 60 has the larger one
    if values[0] >= 0:  # where it is said how many there are, a label is its own number
        assert load_data(load_scenario(file, ["data.dataset.classes=11"])).y_train.max() == values[1]


def test_a_packed_csv_file_is_the_same(place):
    save_csv(place / "mine.csv")
    (place / "mine.csv.gz").write_bytes(gzip.compress((place / "mine.csv").read_bytes()))
    plain, packed = (
        registry.make("dataset", "csv", file=name, label="ill", client="hospital", folder=str(place))
        for name in ("mine.csv", "mine.csv.gz")
    )
    assert torch.equal(plain.x_train, packed.x_train)
    assert plain.names == packed.names
    for broken in (b"a,b", gzip.compress(b"a,b\n1,2\n" * 99)[:-12]):
        (place / "mine.csv.gz").write_bytes(broken)
        with pytest.raises(FedwardenError, match="expected a table of values between commas"):
            registry.make("dataset", "csv", file="mine.csv.gz", folder=str(place))


def test_a_parquet_file_is_the_same_as_a_csv_file(place):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    arrow = pytest.importorskip("pyarrow")
    save_csv(place / "mine.csv")
    with (place / "mine.csv").open() as file:
        names, *rows = csv.reader(file)
    table = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    table |= {name: [float(v) for v in table[name]] for name in ("age", "pressure")}
    parquet.write_table(arrow.table(table), place / "mine.parquet")
    options = 'label = "ill", client = "hospital"'
    one, two = (
        load_data(load_scenario(write(place / "a.toml", f'{{name = "{kind}", file = "mine.{kind}", {options}}}')))
        for kind in ("csv", "parquet")
    )
    torch.testing.assert_close(one.x_train, two.x_train)
    assert torch.equal(one.y_test, two.y_test)
    assert one.names == two.names


@pytest.mark.parametrize(
    ("package", "dataset"),
    [("pyarrow.parquet", '{name = "parquet", file = "a.parquet"}'), ("PIL.Image", '{name = "folders", path = "a"}')],
)
def test_what_is_not_installed_is_said_in_one_line(call, place, monkeypatch, package, dataset):
    (place / "a").mkdir()
    (place / "a.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, package, None)
    code, _, err = call("run", write(place / "mine.toml", dataset))
    assert code == 2
    assert f"needs {package}" in err
    assert "pip install 'fedwarden[data]'" in err
    with pytest.raises(MissingExtra):
        load_data(load_scenario(place / "mine.toml"))


def test_images_in_a_folder_for_each_class(call, place):
    images(place / "photos")
    file = write(place / "mine.toml", '{name = "folders", path = "photos"}', data=", clients = 3")
    assert call("run", file)[0] == 0
    data = load_data(load_scenario(file))
    assert (data.shape, data.classes, data.names) == ((3, 8, 8), 2, None)
    bright, dark = (data.x_train[data.y_train == k].mean() for k in (0, 1))
    assert bright > dark
    grey = load_data(load_scenario(file, ["data.dataset.grey=true", "data.dataset.size=5"]))
    assert grey.shape == (1, 5, 5)


def test_images_in_folders_of_clients(place):
    images(place / "photos", clients=("anna", "ben"))
    scenario = load_scenario(write(place / "mine.toml", '{name = "folders", path = "photos"}'))
    assert settle(scenario, load_data(scenario)).client_ids == ("anna", "ben")


@pytest.mark.slow
def test_a_function_and_a_model_beside_the_file_in_a_process_of_its_own(place):
    (place / "sites.py").write_text(MODULE)
    file = write(
        place / "sites.toml", '"sites:load"', model='{name = "sites:Net", width = 9}', rounds=2, train="{workers = 2}"
    )
    (place / "elsewhere").mkdir()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fedwarden", "run", str(file)],
        cwd=place / "elsewhere", capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "after 2 rounds" in done.stdout
    again = subprocess.run(
        [sys.executable, "-P", "-m", "fedwarden", "run", "--resume", "1", "--set", "rounds=3"],
        cwd=place / "elsewhere", capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert again.returncode == 2  # a ledger imports nothing
    assert "--import sites" in again.stderr


def test_a_run_that_was_cut_off_says_to_name_its_module_again(call, place, monkeypatch):
    (place / "sites.py").write_text(MODULE)
    file, follow = write(place / "sites.toml", '"sites:load"', rounds=3), Monitor.on_round

    def interrupt(self, record):
        follow(self, record)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Monitor, "on_round", interrupt)
        code, _, err = call("run", file, "--set", "train.lr=0.05")
    assert code == 130
    assert "continue with: fedwarden run --resume 1 --import sites\n" in err
    assert call("run", "--resume", "1", "--import", "sites")[0] == 0


def test_the_folder_is_searched_only_where_a_module_is_named(place):
    load_scenario(save_npz(place))
    assert str(place) not in sys.path
    (place / "sites.py").write_text(MODULE)
    scenario = load_scenario(write(place / "sites.toml", '"sites:load"'))
    assert sys.path[0] == str(place)
    assert scenario.imports == ("sites",)
    assert scenario.data.folder == str(place)


def test_only_what_the_module_itself_defines_can_be_named(place):
    (place / "sites.py").write_text("from os import system\n" + MODULE)
    with pytest.raises(ConfigError, match="'sites' defines no function or class 'system'"):
        load_data(load_scenario(write(place / "sites.toml", '"sites:system"')))
    with pytest.raises(ConfigError, match="the module 'os' was not imported"):
        registry.lookup("dataset", "os:system")


def test_a_module_that_another_one_hides_is_refused(place):
    (place / "csv.py").write_text(MODULE)
    with pytest.raises(ConfigError, match=r"csv\.py cannot be used: another module 'csv' is already imported"):
        load_scenario(write(place / "sites.toml", '"csv:load"'))


def test_a_model_without_arguments(place):
    (place / "sites.py").write_text(MODULE.replace("(5,), 7", "(5,), 2"))
    federation = Federation(load_scenario(write(place / "sites.toml", '"sites:load"', model='"sites:Two"')))
    assert federation.clients == tuple(f"site {i}" for i in range(6))


def refused(call, file, settings, said):
    """It ends with one line that says why."""
    code, _, err = call("run", file, "--quiet", *(part for s in settings for part in ("--set", s)))
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(said, err), err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["model=sites:Two"], r"'sites:Two' gives \(2, 7\) for 2 samples of dataset 'sites:load'; expected \(2, 2\)"),
        (["model=sites:Nett"], r"defines no function or class 'Nett'; did you mean 'Net'\?"),
        (["model=sites:load"], "expected a torch.nn.Module; got dict"),
        (["model=sites:halves"], "model 'sites:halves' needs data, n and rng"),
        (["model=sites:Net", "model.with=3"], "has no option 'with'; did you mean 'width'"),
        (["model=cnn"], "model 'cnn'"),
        (["model=sites:Net", "train.batch_size=31"], "site 0 has 32 samples, .* a batch of one sample, .* 30 leaves"),
        (["train.batch_size=4", "train.smallest_batch=5"], "smallest_batch is at most batch_size, .* got 5 and 4"),
        (["data.dataset=sites:broken"], r"'sites:broken' failed: KeyError: 'nothing' \(sites.py, line 11\)"),
        (["data.partition=sites:wrong"], r"takes \(data, n\); expected a function of \(data, n, rng\)"),
        (["data.partition=sites:load"], "expected a function of"),
        (["data.partition=sites:nobody", "data.clients=4"], "client 0 of 4 has no data"),
        (["data.partition=sites:beyond", "data.clients=4"], "client 0: expected whole numbers from 0 to 191"),
        (["data.clients=7"], "expected 6 clients, as it names; data.clients = 7"),
        (["data.clients=1000000", "data.partition=iid"], "1,000,000 clients need a training sample each; .* has 192"),
        (["data.clients=100000000"], "data.clients: expected at most 1000000"),
    ],
)  # fmt: skip
def test_a_mistake_around_a_module_is_one_line(call, place, settings, said):
    (place / "sites.py").write_text(MODULE)
    file = write(place / "sites.toml", '"sites:load"')
    refused(call, file, settings, said)


def test_a_partition_of_ones_own_divides_in_order(place):
    (place / "sites.py").write_text(MODULE)
    file = write(place / "sites.toml", '"sites:load"')
    world = build_world(load_scenario(file, ["data.partition=sites:halves", "data.clients=4"]))
    assert [rows.tolist() for rows in world.rows.values()] == [list(range(i, i + 48)) for i in range(0, 192, 48)]


X, Y, OWNER = hospitals()
NAN = np.where(np.arange(320)[:, None] == 45, np.nan, X)


@pytest.mark.parametrize(
    ("changes", "settings", "said"),
    [
        ({"labels": Y + 0.5}, [], r"mine.npz: classification needs classes .* of client north"),
        ({"labels": Y[:-1]}, [], r"mine.npz: expected features of shape .* got \(320, 4\) and \(319,\)"),
        ({"labels": Y - 1}, [], r"mine.npz: client \w+, row \d+: expected a label of at least 0; got -1"),
        ({"labels": Y + 4}, ["data.dataset.classes=5"], r"mine.npz: client .*: expected a label from 0 to 4; got 5"),
        ({"labels": None}, [], r"mine.npz needs the arrays labels; it has features, clients"),
        ({"features": X[:, 0]}, [], r"mine.npz: expected features of shape \(n, ...\)"),
        ({"features": NAN}, [], r"mine.npz: client south, row 45: expected finite features"),
        ({"features": X.astype(str)}, [], r"mine.npz: expected features that are numbers"),
        ({"features": np.array([{}] * 320)}, [], r"mine.npz is no .npz file of plain arrays"),
        ({"clients": OWNER[:3]}, [], r"mine.npz: expected a client for each of 320 rows; got shape \(3,\)"),
        ({"clients": np.where(OWNER == "hill", "", OWNER)}, [], r"mine.npz: row \d+: expected the name of a client"),
        ({}, ["data.dataset.file=yours.npz"], r"no data file yours.npz in .*; put it there or point FEDWARDEN_DATA"),
        ({}, ["data.dataset=npz"], r"needs the name of a file"),
        ({}, ["data.dataset.test=1.5"], r"mine.npz: test is a share"),
        ({"clients": None}, ["data.clients=1000", "data.partition=shards"], r"1,000 clients .* mine.npz has 256"),
        ({}, ["data.limit=3"], r"mine.npz: client \w+ of 8 has no data"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_npz_file_is_one_line_with_file_and_client(call, place, changes, settings, said):
    refused(call, save_npz(place, **changes), settings, said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a table"),
        ("a,label\n", "expected rows below the names"),
        ("a,label\n1,0\n2\n", "row 2: expected 2 values"),
        ("a,lable\n1,0\n", "no column 'label'; did you mean 'lable'"),
        ("label\n1\n", "expected columns of features"),
        (
            "a,client,label\n1,x,0\n,y,1\n2,x,0\n",
            "client y, row 2: expected a number in column 'a', as in other rows; got ''",
        ),
        ("a,label\n" + "".join(f"w{i},0\n" for i in range(150)), "column 'a' has 150 different words"),
        ("a,label\n1,0\n2,1\n", "a share of 0.2 of 2 rows is none"),
        ("a,a,label\n1,2,0\n", "expected a name of its own for every column; two are called 'a'"),
        ("a,,,label\n1,2,3,0\n", "expected a name of its own for every column; two are called ''"),
        ("a,client,label\n1,x,0\n2,y,\n", "client y, row 2: expected a label in column 'label'; got none"),
        ("a,client,label\n1,x,0\ninf,y,1\n", "client y, row 2: expected a finite number in column 'a'; got 'inf'"),
        ("a|label\n1|0\n", "expected commas, semicolons or tabs between names"),
    ],
)
def test_a_mistake_in_a_table_is_one_line(call, place, text, said):
    (place / "mine.csv").write_text(text)
    file = write(place / "mine.toml", '{name = "csv", file = "mine.csv"}')
    refused(call, file, [], "mine.csv.*" + re.escape(said))


def test_mistakes_in_folders_of_images(call, place):
    file = write(place / "mine.toml", '{name = "folders", path = "photos"}', data=", clients = 3")
    assert "no data file photos in" in call("run", file)[2]
    images(place / "photos")
    (place / "photos" / "dark" / "4.png").write_bytes(b"no image")
    assert "4.png cannot be read as an image" in call("run", file)[2]
    (place / "photos" / "dark" / "4.png").unlink()
    images(place / "photos" / "more", size=9)
    assert (
        "expected photos/class/image, or photos/client/class/image; got images 1 and 2 folders deep"
        in call("run", file)[2]
    )
    (place / "photos" / "more" / "dark").rename(place / "photos" / "larger")
    for left in (place / "photos" / "more" / "bright").iterdir():
        left.unlink()
    assert "expected 8 x 8 pixels" in call("run", file)[2]


def test_run_leaves_the_audit_table_aside_and_says_who_uses_it(call, place):
    audit = '{start = 3, change = {name = "label_flip"}}'
    file = write(place / "planned.toml", '"digits"', data=", clients = 4", rounds=1, audit=audit)
    code, _, err = call("run", file)
    assert code == 0
    assert f"the table [audit] is ignored here; fedwarden audit {file} uses it" in err
    code, _, err = call("audit", file)
    assert code == 2
    assert "audit.start: expected at least 6; got 3" in err
