"""Work that threads share: all of them take part, none more than needed, and errors arrive."""

import threading
from itertools import count

import numpy as np
import pytest
import torch

from fedwarden.updates.cpu import together


@pytest.fixture(params=[1, 2, 4])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_no_more_threads_than_there_is_work_for(threads):
    seen = []
    together(lambda: seen.append(threading.get_ident()), most=1)
    assert seen == [threading.get_ident()]


@pytest.mark.parametrize("threads", [2], indirect=True)
def test_several_threads_take_part(threads):
    met = threading.Barrier(threads, timeout=20)
    together(met.wait, most=8)  # each waits for the other


def test_work_within_work_ends(threads):
    """A helper that is busy is not waited for: the calling thread does its share."""
    done = []
    together(lambda: together(lambda: done.append(1), most=4), most=4)
    assert done


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("threads", [2], indirect=True)
def test_an_error_reaches_the_caller(threads, bad):
    numbers, met = count(), threading.Barrier(threads, timeout=20)

    def work():
        k = next(numbers)
        met.wait()
        if k == bad:
            raise KeyError(k)

    with pytest.raises(KeyError):
        together(work, most=2)


def test_a_number_is_given_once(threads):
    pytest.importorskip("numba")
    from numba import njit

    from fedwarden.updates.intrinsics import take

    @njit(nogil=True)
    def collect(turn, taken):
        k = take(turn)
        while k < len(taken):
            taken[k] += 1
            k = take(turn)

    turn, taken = np.zeros(1, np.int64), np.zeros(100_000, np.int64)
    together(lambda: collect(turn, taken), most=threads)
    assert (taken == 1).all()
