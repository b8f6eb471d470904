"""Tasks on threads: results in order whatever the threads do, and errors that arrive."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from fedwarden.core.threads import in_order


@pytest.fixture(params=[1, 2, 4])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_are_used_in_the_order_of_the_tasks(threads):
    found = []

    def slow_first(k):
        time.sleep(0.02 if k == 0 else 0.0)
        return k

    in_order(slow_first, iter(range(20)), found.append)
    assert found == list(range(20))


def test_no_more_threads_than_tasks(threads):
    seen = set()
    in_order(lambda _: seen.add(threading.get_ident()), [0], lambda _: None)
    assert seen == {threading.get_ident()}


def test_several_threads_take_part():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    met = threading.Barrier(2, timeout=20)
    try:
        in_order(lambda _: met.wait(), range(2), lambda _: None)  # each waits for the other
    finally:
        torch.set_num_threads(before)


def test_no_task_at_all(threads):
    in_order(lambda _: pytest.fail("there is nothing to do"), [], lambda _: None)


@pytest.mark.parametrize("bad", [0, 1, 7])
def test_an_error_of_a_task_reaches_the_caller(threads, bad):
    def task(k):
        if k == bad:
            raise KeyError(k)
        return k

    found = []
    with pytest.raises(KeyError):
        in_order(task, range(8), found.append)
    assert found == list(range(len(found)))
    assert len(found) <= bad
