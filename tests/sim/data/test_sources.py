"""Loaders, from tiny files with the keys of the real ones; nothing here may touch the network."""

import gzip
import socket
import sys
import types

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedwarden.core.errors import FedwardenError, MissingExtra
from fedwarden.core.registry import make, names
from fedwarden.sim.data.sources import DataError, find, folders, from_hub

RNG = np.random.default_rng(0)


def pictures(n, *shape):
    return RNG.integers(0, 256, size=(n, *shape), dtype=np.uint8)


def labels(n, classes):
    return np.concatenate([np.arange(classes), RNG.integers(0, classes, size=n - classes)])


def splits(n=12, m=5, shape=(6, 6), classes=4):
    return {
        "x_train": pictures(n, *shape),
        "y_train": labels(n, classes),
        "x_test": pictures(m, *shape),
        "y_test": labels(m, classes),
    }


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A data folder of this test's own; the shared one is out of reach, and so is the network."""

    def refuse(*args, **kwargs):
        raise AssertionError("a test asked for the network")

    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    monkeypatch.setenv("FEDWARDEN_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def assert_pictures(data, arrays, invert=False):
    """Floats in [0, 1], channels first, in the order of the file."""
    for got, key in ((data.x_train, "x_train"), (data.x_test, "x_test")):
        x = arrays[key].astype(np.float64) / 255
        x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
        np.testing.assert_allclose(got.numpy(), 1 - x if invert else x, atol=1e-6)
        assert got.dtype == torch.float32
    for got, key in ((data.y_train, "y_train"), (data.y_test, "y_test")):
        assert got.tolist() == arrays[key].reshape(-1).tolist()
        assert got.dtype == torch.int64


def test_digits_are_sklearns_each_in_one_split():
    data = make("dataset", "digits")
    assert (data.x_train.shape, data.x_test.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert (data.shape, data.classes, data.clients) == ((1, 8, 8), 10, None)
    assert (float(data.x_train.min()), float(data.x_train.max())) == (0.0, 1.0)
    x, y = load_digits(return_X_y=True)
    ours = torch.cat([data.x_train, data.x_test]).reshape(-1, 64).numpy() * 16
    mine = sorted(zip(map(tuple, ours.tolist()), torch.cat([data.y_train, data.y_test]).tolist(), strict=True))
    assert mine == sorted(zip(map(tuple, x.tolist()), y.tolist(), strict=True))
    again = make("dataset", "digits")
    assert torch.equal(again.x_train, data.x_train)
    assert min(np.bincount(data.y_test.numpy())) > 20  # every class is there to test on


@pytest.mark.parametrize(
    ("name", "file", "shape"),
    [
        ("mnist", "mnist", (6, 6)),
        ("fashion_mnist", "fashion_mnist", (6, 6)),
        ("pneumoniamnist", "pneumoniamnist", (6, 6)),
        ("cifar10", "cifar10_21k", (6, 5, 3)),
        ("pathmnist", "pathmnist_10k", (6, 5, 3)),
    ],
)
def test_plain_pictures(name, file, shape, place):
    arrays = splits(shape=shape)
    np.savez(place / f"{file}.npz", **arrays)
    data = make("dataset", name)
    assert_pictures(data, arrays)
    assert (data.classes, data.clients) == (4, None)
    assert data.shape == ((1, 6, 6) if len(shape) == 2 else (3, 6, 5))


@pytest.mark.parametrize(
    ("name", "file", "owner", "invert"),
    [
        ("femnist_digits", "femnist_digits_iid", "client", True),
        ("femnist_writers", "femnist62_writers", "writer", True),
        ("its_stop_sign", "its_stop_sign", "client", False),
    ],
)
def test_pictures_that_come_with_clients(name, file, owner, invert, place):
    arrays = {**splits(shape=(6, 6, 3) if name == "its_stop_sign" else (6, 6))}
    who = np.array([7, 2, 7, 9, 2, 2, 9, 7, 2, 9, 9, 2])
    np.savez(place / f"{file}.npz", **arrays, **{f"{owner}_train": who, f"{owner}_test": np.array([2, 7, 9, 2, 2])})
    data = make("dataset", name)
    assert_pictures(data, arrays, invert)
    assert [rows.tolist() for rows in data.clients] == [[1, 4, 5, 8, 11], [0, 2, 7], [3, 6, 9, 10]]  # 2, 7, 9


def test_pneumonia_with_the_authors_overlapping_clients(place):
    arrays = splits(classes=2)
    np.savez(place / "pneumoniamnist.npz", **arrays)
    np.savez(place / "pneumoniamnist_clients.npz", rows=np.array([[0, 1, 2], [2, 3, 4], [4, 0, 11]]))
    data = make("dataset", "pneumoniamnist")
    assert_pictures(data, arrays)
    assert [rows.tolist() for rows in data.clients] == [[0, 1, 2], [2, 3, 4], [4, 0, 11]]


@pytest.mark.parametrize("official", [True, False])
def test_bloodmnist_under_its_official_names(official, place):
    arrays = splits(shape=(6, 6, 3), classes=4)
    renamed = {
        "train_images": arrays["x_train"],
        "train_labels": arrays["y_train"][:, None],  # a column, as MedMNIST has it
        "test_images": arrays["x_test"],
        "test_labels": arrays["y_test"][:, None],
        "val_images": pictures(2, 6, 6, 3),
        "val_labels": np.zeros((2, 1), dtype=int),
    }
    np.savez(place / "bloodmnist.npz", **(renamed if official else arrays))
    data = make("dataset", "bloodmnist")
    assert_pictures(data, arrays)
    assert (data.classes, data.shape) == (4, (3, 6, 6))


ADULT = """age,workclass,income,split,flat
20,Private,<=50K,train,1
30,?,>50K,train,1
40, Private,<=50K,train,1
70,?,>50K.,test,5
25,State,<=50K.,test,1
"""


@pytest.mark.parametrize("pack", [lambda raw: raw, gzip.compress], ids=["plain", "gzip"])
def test_all_of_cifar_10_from_its_binary_form(place, pack):
    folder = place / "cifar-10-batches-bin"
    folder.mkdir()
    for i, name in enumerate([*(f"data_batch_{b}" for b in range(1, 6)), "test_batch"]):
        pixels = np.arange(3072) // 1024 + i  # channel by channel: red i, green i + 1, blue i + 2
        raw = bytes([i]) + pixels.astype(np.uint8).tobytes()
        (folder / f"{name}.bin{'.gz' if pack is gzip.compress else ''}").write_bytes(pack(raw))
    data = make("dataset", "cifar10_whole")
    assert (data.shape, data.y_train.tolist(), data.y_test.tolist()) == ((3, 32, 32), [0, 1, 2, 3, 4], [5])
    np.testing.assert_allclose(data.x_train[3, :, 0, 0].numpy() * 255, [3, 4, 5], rtol=1e-6)
    (folder / f"test_batch.bin{'.gz' if pack is gzip.compress else ''}").write_bytes(pack(b"short"))
    with pytest.raises(FedwardenError, match="3073 bytes"):
        make("dataset", "cifar10_whole")


def test_adult(place):
    with gzip.open(place / "adult.csv.gz", "wt") as file:
        file.write(ADULT)
    data = make("dataset", "adult")
    deviation = np.sqrt(200 / 3)  # of 20, 30, 40
    # columns by name: age, flat (constant in training: centred only), workclass = ?, Private, State
    np.testing.assert_allclose(
        data.x_train.numpy(), [[-10 / deviation, 0, 0, 1, 0], [0, 0, 1, 0, 0], [10 / deviation, 0, 0, 1, 0]], atol=1e-6
    )
    np.testing.assert_allclose(
        data.x_test.numpy(), [[40 / deviation, 4, 1, 0, 0], [-5 / deviation, 0, 0, 0, 1]], atol=1e-6
    )
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 1, 0], [1, 0])
    assert (data.classes, data.x_train.dtype, data.y_train.dtype) == (2, torch.float32, torch.int64)


def test_adult_as_codes_has_one_number_for_each_category_and_no_repetition(place):
    with gzip.open(place / "adult.csv.gz", "wt") as file:
        file.write(ADULT.replace("flat", "fnlwgt"))
    data = make("dataset", "adult", encode="codes")
    work = np.array([1, 0, 1, 0, 2.0])  # ?, Private, State by the alphabet; standardised by the first three
    np.testing.assert_allclose(
        torch.cat([data.x_train, data.x_test])[:, 1].numpy(), (work - 2 / 3) / np.sqrt(2 / 9), atol=1e-6
    )
    assert data.shape == (2,)
    with pytest.raises(FedwardenError, match="one_hot"):
        make("dataset", "adult", encode="hash")


OWN = ("csv", "folders", "memory", "npz", "parquet")  # what they are made from is the user's to name


@pytest.mark.parametrize("name", [n for n in names("dataset") if n not in ("diabetes", "digits", *OWN)])
def test_a_missing_file_says_where_it_was_looked_for(name, place, tmp_path):
    with pytest.raises(FedwardenError) as caught:
        make("dataset", name, folder=str(tmp_path / "mine"))
    if isinstance(caught.value, MissingExtra):
        assert name in ("mnist", "fashion_mnist", "cifar10", "cifar10_whole")  # those with a public source
        assert "pip install 'fedwarden[data]'" in str(caught.value)
    else:
        assert isinstance(caught.value, DataError)
    message = str(caught.value)
    assert ".npz" in message or ".gz" in message
    for part in (str(tmp_path / "mine"), str(place), "../shared/data", "FEDWARDEN_DATA"):
        assert part in message


def test_folders_are_searched_in_order(place, tmp_path, monkeypatch):
    mine, shared = tmp_path / "mine", tmp_path / "a" / "shared" / "data"
    for folder, value in ((shared, 3), (place, 2), (mine, 1)):
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "x.npz", value=value)
        assert find("x.npz", str(mine), needs=("value",))["value"] == value
    assert find("x.npz", None, needs=())["value"] == 2
    monkeypatch.delenv("FEDWARDEN_DATA")
    assert find("x.npz", None, needs=())["value"] == 3
    monkeypatch.setenv("HOME", "/home/me")
    assert str(folders("~/data")[0]) == "/home/me/data"


def hub(monkeypatch, load_dataset):
    package = types.SimpleNamespace(load_dataset=load_dataset, __spec__=object())
    monkeypatch.setitem(sys.modules, "datasets", package)


def test_a_file_that_is_there_is_not_downloaded(place, monkeypatch):
    hub(monkeypatch, lambda *args: pytest.fail("downloaded"))
    np.savez(place / "mnist.npz", **splits())
    make("dataset", "mnist")


def test_a_download_that_fails_is_a_data_error(place, monkeypatch):
    def offline(*args):
        raise ConnectionError("no route")

    hub(monkeypatch, offline)
    with pytest.raises(DataError, match=r"mnist\.npz.*download failed \(ConnectionError: no route\)") as caught:
        make("dataset", "mnist")
    assert str(place) in str(caught.value)


def test_what_comes_from_the_hub(monkeypatch):
    arrays = splits()
    asked = []

    def load_dataset(path, config):
        asked.append((path, config))
        return {s: {"img": list(arrays[f"x_{s}"]), "label": arrays[f"y_{s}"].tolist()} for s in ("train", "test")}

    hub(monkeypatch, load_dataset)
    got = from_hub("somebody/pictures", "small", image="img")
    assert asked == [("somebody/pictures", "small")]
    for key in arrays:
        np.testing.assert_array_equal(got[key], arrays[key])


@pytest.mark.parametrize("fault", ["garbage", "cut off", "a key is missing", "pickled objects"])
def test_a_file_that_is_not_as_expected_is_a_data_error(fault, place):
    path = place / "mnist.npz"
    arrays = splits()
    if fault == "a key is missing":
        del arrays["y_test"]
    if fault == "pickled objects":
        arrays["x_train"] = np.array([{}, []], dtype=object)
    np.savez(path, **arrays)
    if fault == "garbage":
        path.write_bytes(b"<html>not found</html>")
    if fault == "cut off":
        path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(FedwardenError, match=r"mnist"):
        make("dataset", "mnist")
