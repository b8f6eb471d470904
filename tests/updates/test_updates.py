"""Every form of input gives the same sums, and none of them is copied as a whole."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedwarden.updates import cpu
from fedwarden.updates import segments as rows_module
from fedwarden.updates import updates as module
from fedwarden.updates.formed import Mixed
from fedwarden.updates.updates import Updates

N, D = 7, 2500
SHAPES = [(3, 7), (1,), (5, 1, 2), (40, 50), (0, 4), (468,)]
MEASURED = [(10, 25), (100, 1300), (2000, 2400)]


def split(row, shapes=SHAPES):
    """One flat row as layers of odd shapes."""
    ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(row, ends), shapes, strict=True)]


def saved(x, folder):
    for i, row in enumerate(x):
        np.save(folder / f"{i}.npy", row)
    return [folder / f"{i}.npy" for i in range(len(x))]


FORMS = {
    "tensor": lambda x, _: torch.from_numpy(x),
    "array": lambda x, _: x,
    "flat arrays": lambda x, _: list(x),
    "flat tensors": lambda x, _: list(torch.from_numpy(x)),
    "python lists": lambda x, _: [row.tolist() for row in x],
    "layers": lambda x, _: [split(row) for row in x],
    "layer tensors": lambda x, _: [[torch.from_numpy(layer) for layer in split(row)] for row in x],
    "fortran": lambda x, _: np.asfortranarray(x),
    "transposed": lambda x, _: torch.from_numpy(np.ascontiguousarray(x.T)).T,
    "every second column": lambda x, _: np.repeat(x, 2, axis=1)[:, ::2],
    "memory map": lambda x, folder: [np.load(path, mmap_mode="r") for path in saved(x, folder)],
}


def reference(x, base=None, measured=None, trusted=None, shares=None):
    """All sums in float64 from the whole matrix."""
    y = np.asarray(x, dtype=np.float64) - (0.0 if base is None else np.asarray(base, dtype=np.float64))
    mask = np.ones(len(y), bool) if trusted is None else trusted
    shares = mask / mask.sum() if shares is None else shares
    columns = np.zeros(y.shape[1], bool)
    for a, b in [(0, y.shape[1])] if measured is None else measured:
        columns[a:b] = True
    z = y[:, columns]
    centred = z - z.mean(axis=0)
    return {
        "rows": y,
        "sq_norms": (y**2).sum(axis=1),
        "sq_distances": ((z - z[mask].mean(axis=0)) ** 2).sum(axis=1),
        "total": shares @ y,
        "gram": centred @ centred.T,
        "to_median": np.linalg.norm(z - np.median(z, axis=0), axis=1),
    }


def surveyed(updates, *arguments, **options):
    """The same rows, carrying a survey of them."""
    return updates.knowing(updates.survey(*arguments, **options))


def check(updates, want, trusted=None, shares=None, rtol=2e-5):
    """Everything that Updates can tell equals the reference."""
    survey = updates.survey(trusted, shares)
    scale = np.sqrt(want["sq_norms"].max())
    np.testing.assert_allclose(survey.sq_norms, want["sq_norms"], rtol=rtol)
    np.testing.assert_allclose(survey.sq_distances, want["sq_distances"], rtol=rtol)
    np.testing.assert_allclose(survey.total, want["total"], rtol=rtol, atol=rtol * scale / np.sqrt(updates.d))
    about_mean = np.eye(len(updates)) - 1 / len(updates)  # the Gram matrix may be about any point
    gram = about_mean @ updates.gram() @ about_mean
    np.testing.assert_allclose(gram, want["gram"], rtol=rtol, atol=5 * rtol * np.abs(want["gram"]).max())
    median = updates.distances(lambda block: block.sort(dim=0).values[len(block) // 2])  # n is odd
    np.testing.assert_allclose(median, want["to_median"], rtol=rtol)
    weights = np.linspace(-1, 2, len(updates))
    np.testing.assert_allclose(updates.weighted_sum(weights), weights @ want["rows"], rtol=rtol, atol=rtol * scale)
    seen = np.full(want["rows"].shape, np.nan)
    for start, stop, block in updates.blocks():
        seen[:, start:stop] = block
    np.testing.assert_allclose(seen, want["rows"], rtol=rtol, atol=rtol)


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)


@pytest.fixture
def narrow(monkeypatch):
    """Blocks of 1024 columns, so that a small matrix has several."""
    monkeypatch.setattr(module, "BLOCK_BYTES", 1)


@pytest.fixture
def compiled(monkeypatch):
    """Small matrices go through the compiled kernels, in several tasks."""
    pytest.importorskip("numba")
    monkeypatch.setattr(module, "KERNEL_SIZE", 0)
    monkeypatch.setattr(cpu, "GROUP_BYTES", 1)


@pytest.fixture(params=[False, True], ids=["blocks", "compiled"])
def fast(request):
    """Small matrices are summed in both ways, one after the other."""
    if request.param:
        request.getfixturevalue("compiled")
    return request.param


def by_blocks(patch):
    """From here on nothing is compiled."""
    patch.setattr(cpu, "kernels", lambda: None)


@pytest.mark.parametrize("measured", [None, MEASURED], ids=["all", "measured"])
@pytest.mark.parametrize("with_base", [False, True], ids=["deltas", "models"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_tells_the_same(form, with_base, measured, x, tmp_path, narrow):
    base = np.random.default_rng(1).normal(size=D).astype(np.float32) if with_base else None
    rows = FORMS[form](x, tmp_path)
    updates = Updates.of(rows, None if base is None else torch.from_numpy(base), measured)
    assert (updates.n, updates.d, len(updates)) == (N, D, N)
    check(updates, reference(x, base, measured))


@pytest.mark.parametrize("form", ["tensor", "flat arrays", "layers", "memory map"])
def test_every_form_tells_the_same_compiled(form, x, tmp_path, compiled):
    base = np.random.default_rng(1).normal(size=D).astype(np.float32)
    updates = Updates.of(FORMS[form](x, tmp_path), torch.from_numpy(base), MEASURED)
    assert updates._compiled()
    check(updates, reference(x, base, MEASURED))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("layered", [False, True])
def test_other_floating_types(dtype, layered, x, narrow):
    rows = torch.from_numpy(x).to(dtype)
    given = [list(row.split([1000, 1500])) for row in rows] if layered else rows
    updates = Updates.of(given)
    assert updates.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    check(updates, reference(rows.double().numpy()), rtol=1e-10 if dtype == torch.float64 else 2e-5)


@pytest.mark.parametrize("wide", [[3], [0, 1], range(N)])
def test_the_model_or_everybody_decides_the_type_of_the_sums_and_no_single_client(x, wide):
    rows = [row.astype(np.float64) if i in wide else row for i, row in enumerate(x)]
    updates = Updates.of(rows)
    assert updates.dtype == (torch.float64 if len(wide) == N else torch.float32)
    check(updates, reference(x))
    for dtype in (torch.float32, torch.float64):
        base = torch.ones(D, dtype=dtype)
        based = Updates.of(rows, base)
        assert based.dtype == dtype
        check(based, reference(x, base.numpy()))
        assert based.select([3, 1]).dtype == dtype  # as fewer clients are read
    assert [row == {torch.float64} for row in updates.types()] == [i in wide for i in range(N)]


def test_open_reads_one_file_per_client(x, tmp_path, narrow):
    base = np.ones(D, np.float32)
    check(Updates.open(saved(x, tmp_path), torch.from_numpy(base)), reference(x, base))
    with pytest.raises(FileNotFoundError, match=r"none\.npy.*one \.npy file per client"):
        Updates.open([tmp_path / "none.npy"])


def test_updates_pass_through_and_empty_rounds_have_a_width():
    updates = Updates.empty(5)
    assert Updates.of(updates) is updates
    assert (updates.n, updates.d) == (0, 5)
    assert updates.survey().total.tolist() == [0.0] * 5
    assert Updates.of(np.zeros((0, 5))).d == 5
    assert Updates.of(np.ones((3, 5))).select([]).d == 5


def test_integer_layers_are_aggregated_but_not_measured(x):
    counters = np.array([[3], [10], [500], [4], [5], [6], [7]])
    updates = Updates.of([[row[:100], counter, row[100:]] for row, counter in zip(x, counters, strict=True)])
    whole = np.concatenate([x[:, :100], counters, x[:, 100:]], axis=1)
    check(updates, reference(whole, measured=[(0, 100), (101, D + 1)]))
    assert updates.weighted_sum(np.full(N, 1 / N))[100] == pytest.approx(counters.mean())


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], {}, "at least one client"),
        ([[np.ones(2), np.ones(3)], [np.ones(3), np.ones(2)]], {}, r"client 0 has \(2, 3\), client 1 \(3, 2\)"),
        (np.ones((2, 3)), {"base": torch.ones(4)}, "got 4, rows have d=3"),
        (np.ones((2, 3)), {"measured": [(0, 2), (1, 3)]}, "disjoint"),
        (np.ones((2, 3)), {"measured": [(0, 4)]}, r"inside \[0, 3\)"),
        (np.ones((2, 3), complex), {}, "real numbers; got dtype complex128"),
        (torch.ones((2, 3), dtype=torch.complex64), {}, "real numbers; got dtype torch.complex64"),
        (np.array([["a"], ["b"]]), {}, "real numbers"),
    ],
)
def test_a_broken_precondition_is_raised(rows, options, message):
    with pytest.raises(ValueError, match=message):
        Updates.of(rows, **options)


def test_one_weight_per_client():
    with pytest.raises(ValueError, match="one weight per client"):
        Updates.of(np.ones((3, 2))).weighted_sum(np.ones(2))


@pytest.mark.parametrize("d", [1, 1023, 1024, 1025, 2049, 5000])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9])
def test_compiled_equals_blocks(n, d, compiled, monkeypatch):
    rng = np.random.default_rng(n * d)
    x, base = rng.normal(size=(n, d)).astype(np.float32), torch.from_numpy(rng.normal(size=d).astype(np.float32))
    trusted, shares = rng.random(n) < 0.7, rng.random(n) * (rng.random(n) < 0.8)
    weights = rng.random(n) * (rng.random(n) < 0.8)
    measured = [(0, d // 3), (d // 2, d)]
    for options in ({}, {"base": base}, {"base": base, "measured": measured}):
        for arguments in ((), (trusted, shares)):
            fast, slow = Updates.of(x, **options), Updates.of(x, **options)
            assert fast._compiled()
            direct_a, a = fast.weighted_sum(weights), fast.survey(*arguments)
            with monkeypatch.context() as patch:
                by_blocks(patch)
                direct_b, b = slow.weighted_sum(weights), slow.survey(*arguments)
            np.testing.assert_allclose(a.sq_norms, b.sq_norms, rtol=1e-5)
            np.testing.assert_allclose(a.sq_distances, b.sq_distances, rtol=1e-5, atol=1e-9)
            np.testing.assert_allclose(a.total, b.total, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(direct_a, direct_b, rtol=1e-5, atol=1e-6)


@pytest.fixture
def threads():
    """A setter of the number of threads, which is put back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e25])
def test_rows_that_are_not_finite_show(bad, fast, x):
    x[2, 1700] = bad
    updates = Updates.of(x, measured=[(0, 1000)])  # outside of what is measured
    assert updates._compiled() == fast
    assert updates.survey().finite.tolist() == [i != 2 for i in range(N)]


def test_a_broken_entry_that_is_not_measured_enters_no_distance(fast, x):
    measured = [(0, 1000)]
    want = reference(x, measured=measured)["sq_distances"]
    x[2, 1700] = np.nan
    np.testing.assert_allclose(Updates.of(x, measured=measured).survey().sq_distances, want, rtol=1e-5)


@pytest.mark.parametrize("known", [False, True])
def test_rows_of_weight_zero_are_never_read(fast, known, x):
    weights = np.array([0.2, 0.0, 0.3, 0.1, 0.0, 0.2, 0.2])
    want = weights @ x.astype(np.float64)
    x[[1, 4]] = np.nan
    updates = Updates.of(x)
    if known:
        updates = surveyed(updates, weights > 0, weights)
    np.testing.assert_allclose(updates.weighted_sum(weights), want, atol=1e-6)


def test_only_rows_that_change_are_read_again(fast, x):
    updates = surveyed(Updates.of(x))
    weights = (np.arange(N) != 4) / (N - 1)
    want = weights @ x.astype(np.float64)
    x[np.arange(N) != 4] = np.nan  # whoever reads these rows a second time gets NaN
    np.testing.assert_allclose(updates.weighted_sum(weights), want, atol=1e-6)


@pytest.mark.parametrize("times", [1e0, 1e2, 1e6, 1e9, 1e12])
def test_removing_a_huge_row_costs_no_digits(times, fast, x):
    x[4] *= times
    weights = (np.arange(N) != 4) / (N - 1)
    updates = surveyed(Updates.of(x))
    want = weights @ x.astype(np.float64)
    error = np.linalg.norm(updates.weighted_sum(weights).numpy() - want) / np.linalg.norm(want)
    assert error < (1e-6 if times != 1e2 else 1e-4)


numbers = st.floats(0, 1, width=32)


@given(
    shares=st.lists(st.just(0.0) | numbers, min_size=6, max_size=6),
    weights=st.lists(st.just(0.0) | numbers, min_size=6, max_size=6),
    factor=st.sampled_from([1.0, 0.5, 3.0]),
    keep=st.lists(st.booleans(), min_size=6, max_size=6),
    related=st.booleans(),
)
def test_a_corrected_sum_equals_a_direct_one(shares, weights, factor, keep, related):
    rows = np.random.default_rng(5).normal(size=(6, 50))
    shares = np.array(shares)
    weights = factor * shares * np.array(keep) if related else np.array(weights)
    updates = surveyed(Updates.of(rows), None, shares)
    np.testing.assert_allclose(updates.weighted_sum(weights), weights @ rows, atol=1e-11)
    np.testing.assert_allclose(updates.survey(None, shares).total, shares @ rows, atol=1e-12)  # was not written to


def test_a_survey_that_rows_carry_answers_the_same_question_and_no_other(x):
    plain, other = Updates.of(x), np.arange(N) > 2
    updates = surveyed(plain)
    assert updates.survey() is updates.known
    assert updates.survey(spread=False) is updates.known
    assert plain.known is None
    brief = surveyed(plain, spread=False)
    np.testing.assert_allclose(brief.survey().sq_distances, reference(x)["sq_distances"], rtol=1e-5)
    np.testing.assert_allclose(
        updates.survey(other).sq_distances, reference(x, trusted=other)["sq_distances"], rtol=1e-5
    )


def test_the_gram_matrix_keeps_the_differences_of_clients_that_nearly_agree():
    small = np.random.default_rng(3).normal(size=(5, 300))
    rows = (1000.0 + 1e-2 * small).astype(np.float32)
    gram = Updates.of(rows).gram()
    squares = np.diag(gram)[:, None] + np.diag(gram) - 2 * gram
    want = ((rows[:, None].astype(np.float64) - rows) ** 2).sum(axis=2)
    np.testing.assert_allclose(squares, want, rtol=1e-5, atol=1e-8)


def status(key):
    """A number of bytes from the kernel's account of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{key}:")).split()[1])


def most_memory(call):
    """By how many bytes the process grew at most during a call."""
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = status("VmRSS")
    call()
    return status("VmHWM") - before


linux = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads /proc")


@linux
@pytest.mark.parametrize("fast", [False, True])
def test_no_call_copies_the_rows(fast, monkeypatch, threads):
    threads(1)  # the pool of a busy machine would take seconds
    if fast:
        pytest.importorskip("numba")
    else:
        by_blocks(monkeypatch)
    n, d = 128, 1 << 18
    rows = [np.ones(d, np.float32) for _ in range(n)]  # 128 MiB

    def everything():
        updates = surveyed(Updates.of(rows, torch.ones(d)))
        updates.gram()
        updates.distances(lambda block: block.mean(dim=0))
        updates.weighted_sum(np.linspace(0, 1, n))

    everything()  # once before, so that compiled code and thread pools are not counted
    assert most_memory(everything) < 4 * n * d // 2


@linux
@pytest.mark.parametrize("fast", [False, True])
def test_pages_of_memory_maps_are_given_back(fast, tmp_path, monkeypatch, threads):
    threads(2 if fast else 1)
    if fast:
        pytest.importorskip("numba")
        monkeypatch.setattr(cpu, "MAPPED_COLUMNS", 1 << 14)
    else:
        by_blocks(monkeypatch)
    monkeypatch.setattr(rows_module, "RELEASE_BYTES", 4 << 20)
    n, d = 128, 1 << 18
    paths = [tmp_path / f"{i}.npy" for i in range(n)]
    for path in paths:  # 128 MiB of files
        np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(d,))
    Updates.open(paths).survey()  # once before, as above
    updates = Updates.open(paths)
    assert most_memory(updates.survey) < 4 * n * d // 2
    assert most_memory(lambda: updates.weighted_sum(np.linspace(0, 1, n))) < 4 * n * d // 2


def test_what_was_written_to_a_private_map_is_not_lost(x, tmp_path, monkeypatch):
    monkeypatch.setattr(rows_module, "RELEASE_BYTES", 1)
    rows = [np.load(path, mmap_mode="c") for path in saved(x, tmp_path)]
    rows[0][:] = 0
    updates = Updates.of(rows)
    updates.survey()
    assert updates.survey(np.arange(N) > 0).sq_norms[0] == 0
    assert not rows[0].any()


def forms(x):
    """Whole models with their base, layers, half precision and columns out of order: what kernels read otherwise."""
    base = torch.randn(x.shape[1], generator=torch.Generator().manual_seed(1))
    yield x, Updates.of(x)
    yield x, Updates.of(torch.from_numpy(x) + base, base)
    yield x, Updates.of([[row[:1000], row[1000:1003], row[1003:]] for row in x])
    yield x, Updates.of(np.asfortranarray(x))
    yield x.astype(np.float16), Updates.of(x.astype(np.float16))


def test_products_and_ranks_of_every_form(x, fast):
    for exact, updates in forms(x):
        y = exact.astype(np.float64)
        n = len(y)
        assert updates._compiled() == fast
        squares = np.diag(updates.gram())[:, None] + np.diag(updates.gram()) - 2 * updates.gram()
        np.testing.assert_allclose(squares, ((y[:, None] - y) ** 2).sum(-1), rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(updates.inner_products(), y @ y.T, rtol=1e-4, atol=1e-2)
        np.testing.assert_allclose(updates.dots(torch.from_numpy(y[0])), y @ y[0], rtol=1e-4, atol=1e-2)
        ordered = np.sort(y, axis=0)
        for low, high in ((0, 1), ((n - 1) // 2, n // 2 + 1), (1, n - 1), (n - 1, n)):
            np.testing.assert_allclose(updates.ranked_mean(low, high), ordered[low:high].mean(axis=0), atol=1e-5)
        for keep in (1, n // 2, n):
            nearest = np.argsort(np.abs(y - np.median(y, axis=0)), axis=0, kind="stable")[:keep]
            distances = np.abs(np.take_along_axis(y, nearest, axis=0) - np.median(y, axis=0))
            got = np.asarray(updates.nearest_mean(keep))
            ties = np.isclose(
                np.sort(np.abs(y - np.median(y, axis=0)), axis=0)[min(keep, n - 1)], distances.max(axis=0)
            )
            expected = np.take_along_axis(y, nearest, axis=0).mean(axis=0)
            np.testing.assert_allclose(got[~ties | (keep == n)], expected[~ties | (keep == n)], atol=1e-5)


def test_mixed_rows_are_those_of_the_product(x, fast):
    matrix = np.random.default_rng(0).dirichlet(np.ones(len(x)), size=4)
    exact = matrix @ x
    lazy, plain = Mixed(Updates.of(x), matrix), Updates.of(exact.astype(np.float32))
    assert (len(lazy), lazy.d) == exact.shape
    survey, other = lazy.survey(), plain.survey()
    np.testing.assert_allclose(survey.sq_norms, other.sq_norms, rtol=1e-5)
    np.testing.assert_allclose(survey.sq_distances, other.sq_distances, rtol=1e-4)
    np.testing.assert_allclose(lazy.inner_products(), exact @ exact.T, rtol=1e-4, atol=1e-2)
    np.testing.assert_allclose(lazy.weighted_sum(np.array([0.5, 0.5, 0, 0])), exact[:2].mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(lazy.ranked_mean(1, 3), np.median(exact, axis=0), atol=1e-5)
    np.testing.assert_allclose(lazy.select([2, 0]).inner_products(), exact[[2, 0]] @ exact[[2, 0]].T, rtol=1e-4)
    half = Mixed(Updates.of(x), 0.5 * matrix)  # shortened rows are mixed with the zero vector
    np.testing.assert_allclose(half.inner_products(), 0.25 * exact @ exact.T, rtol=1e-4, atol=1e-2)
    np.testing.assert_allclose(half.weighted_sum(np.array([1.0, 0, 0, 0])), exact[0] / 2, atol=1e-5)
    with pytest.raises(ValueError, match="needs rows of"):
        Mixed(Updates.of(x), matrix[:, 1:])


@pytest.mark.parametrize("form", ["tensor", "layers"])
@pytest.mark.parametrize("with_base", [False, True])
def test_the_majority_says_what_is_not_measured(form, with_base, fast, x, tmp_path):
    loose = np.ones(D, bool)
    for a, b in MEASURED:
        loose[a:b] = False
    base = torch.from_numpy(np.random.default_rng(1).normal(size=D).astype(np.float32)) if with_base else None
    sent = x if base is None else x + base.numpy()
    sent[2, loose], sent[4, ~loose] = 1e9, 1e4  # so far that taking it out of a sum would leave nothing of the rest
    reference = np.arange(N) != 1
    updates = Updates.of(FORMS[form](sent, tmp_path), base, MEASURED)
    agreed, far = updates.agreed(reference)
    deltas = (sent if base is None else sent - base.numpy()).astype(np.float64)[:, loose]
    voters = np.flatnonzero(reference)
    off = np.abs(deltas[voters] - np.median(deltas[voters], axis=0))
    core = voters[np.argsort((off / np.median(off, axis=0)).mean(axis=1))[: len(voters) // 2 + 1]]
    middle = np.median(deltas[core], axis=0)
    mads = np.median(np.abs(deltas[core] - middle), axis=0)
    expected = (np.abs(deltas - middle) > 6 * mads).mean(axis=1)
    np.testing.assert_allclose(far, expected, atol=0.02)
    assert far[2] == 1
    near = reference & (expected <= 0.1)
    near = near if 2 * near.sum() > reference.sum() else reference
    np.testing.assert_allclose(agreed.numpy(), np.median(deltas[near], axis=0), rtol=1e-3, atol=2e-5)
    assert sum(b - a for a, b in updates.buffers) == loose.sum() == len(agreed)


def test_a_minority_on_one_side_does_not_move_what_most_agree_on():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(10, 200))
    rows[:4] = rows[4:].mean(axis=0) + 6 * rows[4:].std(axis=0)
    updates = Updates.of(np.concatenate([np.ones((10, 3)), rows], axis=1), measured=[(0, 3)])
    agreed, far = updates.agreed(np.ones(10, bool))
    np.testing.assert_allclose(agreed.numpy(), np.median(rows[4:], axis=0))
    assert far[:4].min() > 0.9
    assert far[4:].max() < 0.1


def test_rows_that_are_all_measured_agree_on_nothing(x):
    for updates in (Updates.of(x), Updates.empty(3)):
        agreed, far = updates.agreed(np.ones(len(updates), bool))
        assert not len(agreed)
        assert not far.any()


@pytest.mark.parametrize("with_base", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_some_columns_of_every_form(form, with_base, fast, x, tmp_path):
    base = torch.linspace(-1, 1, D) if with_base else None
    rows = Updates.of(FORMS[form](x, tmp_path), base)
    matrix = np.arange(3.0 * N).reshape(3, N)
    want = x if base is None else x - base.numpy()
    for columns in (np.array([0, 20, 21, 22, 31, 1000, D - 1]), np.arange(D), np.zeros(0, np.int64)):
        np.testing.assert_allclose(rows.sample(columns), want[:, columns], rtol=1e-6)
        np.testing.assert_allclose(Mixed(rows, matrix).sample(columns), matrix @ want[:, columns], rtol=1e-4, atol=1e-4)


@linux
def test_columns_far_apart_do_not_hold_all_pages_of_the_files(tmp_path):
    n, d = 64, 1 << 20
    paths = [tmp_path / f"{i}.npy" for i in range(n)]
    for i, path in enumerate(paths):
        np.save(path, np.full(d, i, np.float32))  # 4 MiB each, 256 MiB
    updates, columns = Updates.open(paths), np.arange(0, d, 512)
    updates.sample(columns[:1])
    found = []
    assert most_memory(lambda: found.append(updates.sample(columns))) < 100 << 20
    assert found[0][:, -1].tolist() == list(range(n))
