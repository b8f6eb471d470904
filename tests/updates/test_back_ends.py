"""Which back end reads the rows where a compiler is missing or broken."""

from types import SimpleNamespace

import pytest

from fedwarden.updates import gpu


@pytest.fixture(autouse=True)
def forgotten():
    """What is known of this machine's Triton is found out again, here and by whoever comes next."""
    gpu.kernels.cache_clear()
    yield
    gpu.kernels.cache_clear()


def test_a_triton_that_cannot_compile_is_done_without_and_told_of_once(monkeypatch):
    def broken(out):
        raise RuntimeError("no C compiler was found\nand more")

    monkeypatch.setattr(gpu, "load_kernels", lambda *names: SimpleNamespace(one={(1,): broken}))
    with pytest.warns(
        UserWarning, match=r"Triton does not work here \(RuntimeError: no C compiler was found\); updates"
    ):
        assert gpu.kernels() is None
    assert gpu.kernels() is None  # and no second warning, which would be an error here
