"""Worker processes change how long a round takes and nothing else."""

import os
import signal
import time
from importlib import import_module

import numpy as np
import pytest
import torch

import fedwarden.sim.training.pool as module
import fedwarden.sim.training.worker as memory
from fedwarden.core import registry
from fedwarden.sim.models import build_model
from fedwarden.sim.training.engine import Engine
from fedwarden.sim.training.limits import cores, processes
from fedwarden.sim.training.optimizer import LocalTraining
from fedwarden.sim.training.pool import Pool
from fedwarden.sim.training.worker import run_task

RECIPE = {"name": "mlp", "options": {"hidden": [8]}, "shape": [1, 8, 8], "classes": 3}
CLIENTS = 8


def engine_of(group=1, per_client=20, epochs=1):
    x = torch.rand(CLIENTS * per_client, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(len(x)) % 3
    rows = np.random.default_rng(0).permutation(len(x)).reshape(CLIENTS, per_client)
    training = LocalTraining(lr=0.1, momentum=0.9, batch_size=6, epochs=epochs)
    model = build_model(**RECIPE, seed=0)
    return Engine(model, training, 0, x, y, {f"c{i}": np.sort(r) for i, r in enumerate(rows)}, group)


@pytest.fixture
def shm(tmp_path, monkeypatch):
    """A shared-memory folder of this test's own, so that what is left in it was left by this test."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(memory, "SHARED_MEMORY", folder)
    return folder


def up(pool):
    """Wait until every worker has started; a round would not."""
    deadline = time.monotonic() + 120
    while not all(worker.ready for worker in pool.workers) and time.monotonic() < deadline:
        for worker in pool.workers:
            worker.ready = worker.ready or worker.hear(0.1) == b"ready\n"
    assert all(worker.ready for worker in pool.workers)
    return [worker.process for worker in pool.workers]


@pytest.fixture
def tasks_here(monkeypatch):
    """The tasks that this process trains itself, a little slowly, so that a worker gets some too."""
    done = []

    def slowly(engine, params, task, *rest):
        time.sleep(0.03)
        run_task(engine, params, task, *rest)
        done.append(task)

    monkeypatch.setattr(module, "run_task", slowly)
    return done


def rounds(pool, count=3):
    """The models of each round, each started from the mean of the last; the second leaves clients out."""
    params, found = pool.engine.layout.flatten(build_model(**RECIPE, seed=0).state_dict()), []
    ids = list(pool.engine.rows)
    for t in range(1, count + 1):
        models = pool.train(params, t, ids if t != 2 else ids[1::2][::-1])
        found.append(models.clone())
        params = models.mean(dim=0)
    return found


@pytest.fixture(scope="module", params=[0, 3])
def alone(request):
    """The rounds of one process, with the group size they belong to."""
    with Pool(engine_of(request.param), RECIPE, 1) as pool:
        assert pool.workers == []
        return request.param, rounds(pool)


def assert_equal(found, want):
    for a, b in zip(found, want, strict=True):
        assert torch.equal(a, b)


def test_two_workers_give_the_same_bits_as_one(alone, shm, tasks_here):
    group, want = alone
    with Pool(engine_of(group), RECIPE, 2) as pool:
        up(pool)
        assert_equal(rounds(pool), want)
    ids = list(pool.engine.rows)
    tasks = sum(len(pool.engine.groups(chosen)) for chosen in (ids, ids[1::2], ids))
    assert len(tasks_here) < tasks  # the worker did some: the first task of a round is sent before any is done here
    assert list(shm.iterdir()) == []


@pytest.mark.slow
def test_token_ids_reach_the_workers(shm, tasks_here, monkeypatch, tmp_path, request):
    """Integers stay integers on their way through shared memory."""
    (tmp_path / "a_text_model.py").write_text(
        "from torch import nn\n"
        "from fedwarden import register\n"
        "@register('model', 'bag_of_words')\n"
        "def bag(shape, classes):\n"
        "    return nn.Sequential(nn.EmbeddingBag(50, 4), nn.Linear(4, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import_module("a_text_model")
    request.addfinalizer(lambda: registry._entries["model"].pop("bag_of_words"))
    recipe = {"name": "bag_of_words", "options": {}, "shape": [9], "classes": 3}
    x = torch.randint(50, (CLIENTS * 20, 9), generator=torch.Generator().manual_seed(0))
    base = engine_of()
    engine = Engine(build_model(**recipe, seed=0), base.training, 0, x, base.y, base.rows, 0)
    params, ids = engine.layout.flatten(engine.model.state_dict()), list(engine.rows)
    with Pool(engine, recipe, 1) as pool:
        want = [pool.train(params, t, ids).clone() for t in (1, 2, 3)]
    tasks_here.clear()
    with Pool(engine, recipe, 2, ["a_text_model"]) as pool:
        up(pool)
        assert_equal([pool.train(params, t, ids).clone() for t in (1, 2, 3)], want)
    assert len(tasks_here) < 3 * CLIENTS


@pytest.mark.slow
def test_a_worker_that_dies_as_it_is_given_a_task(shm, monkeypatch):
    """Between the look whether it lives and the writing: the pipe breaks with the task still in its buffer."""
    with Pool(engine_of(), RECIPE, 1) as pool:
        want = rounds(pool, 1)
    with Pool(engine_of(), RECIPE, 2) as pool:
        (process,) = up(pool)
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with monkeypatch.context() as patch:
            patch.setattr(process, "poll", lambda: None)
            assert_equal(rounds(pool, 1), want)
    assert list(shm.iterdir()) == []


def test_close_leaves_no_process(shm):
    """Here before the worker is up; the other tests look after rounds."""
    pool = Pool(engine_of(), RECIPE, 2)
    process = pool.workers[0].process
    pool.close()
    assert process.returncode == -signal.SIGKILL
    assert list(shm.iterdir()) == []
    pool.close()  # once more does nothing


def test_a_module_of_the_users_own_and_one_worker_use_no_process():
    for model, workers in ((None, 4), (RECIPE, 1)):
        with Pool(engine_of(), model, workers) as pool:
            assert pool.workers == []
            assert pool.scratch is None


def test_the_number_of_threads_is_put_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with Pool(engine_of(), RECIPE, 1) as pool:
            rounds(pool, 1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_one_process_per_core_this_process_may_use_and_per_task(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 9}, raising=False)
    assert cores() == processes(None) == processes(100_000) == 3
    assert [processes(2), processes(1), processes(None, tasks=2), processes(9, tasks=0)] == [2, 1, 2, 1]
