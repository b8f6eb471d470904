"""One bad site of eight changes nothing, whatever it sends; and NVIDIA FLARE's forms are kept."""

import math
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("nvflare", reason="the extra 'nvflare' is not installed")

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.base_fedavg import BaseFedAvg
from nvflare.app_opt.pt.lazy_tensor_dict import LazyTensorDict
from safetensors.torch import save_file

import fedwarden as fw
from fedwarden.core.errors import ConfigError
from fedwarden.guard.admission import cohort_of
from fedwarden.guard.contributions import open_letters
from fedwarden.guard.params import Form
from fedwarden.nvflare import GuardedAggregator
from fedwarden.nvflare.inbox import contribution
from fedwarden.store.ledger import Ledger
from fedwarden.store.round import RoundStory

from .sites import (
    BAD,
    BAD_PARAMS,
    BAD_STEPS,
    SITES,
    STEPS,
    LocalFedAvg,
    N,
    Trap,
    answer,
    context,
    honest,
    model,
    reversing,
    sent,
)

KINDS = [ParamsType.FULL, ParamsType.DIFF]


def guarded(base=None, **options):
    """An aggregator that has seen the model of the round."""
    aggregator = GuardedAggregator(**options)
    show(aggregator, model() if base is None else base)
    return aggregator


def show(aggregator, params):
    fl_ctx = context()
    shareable = FLModelUtils.to_shareable(FLModel(params=params, total_rounds=3))
    fl_ctx.set_prop(AppConstants.TRAIN_SHAREABLE, shareable, private=True, sticky=False)
    aggregator.handle_event(EventType.START_RUN, fl_ctx)
    aggregator.handle_event(AppEventType.BEFORE_TRAIN_TASK, fl_ctx)


def combine(aggregator, answers):
    for reply in answers:
        aggregator.accept_model(reply)
    return aggregator.aggregate_model()


def crowd(kind=ParamsType.FULL, base=None, but=()):
    base = model() if base is None else base
    return [answer(site, sent(site, base, kind), kind) for site in SITES if site not in but]


def rejected(aggregator):
    return {r.client_id for r in aggregator.record.rejected}


def close(made, expected):
    assert list(made) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(np.asarray(made[name]), np.asarray(value), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", BAD_PARAMS)
def test_a_bad_model_costs_its_site_the_round_and_nobody_else(bad, kind):
    fair = combine(guarded(), crowd(kind, but=[BAD]))
    changed = BAD_PARAMS[bad](sent(BAD, model(), kind))
    for late in (False, True):  # the first to answer, and the last
        aggregator = guarded()
        others, odd = crowd(kind, but=[BAD]), [answer(BAD, changed, kind)]
        made = combine(aggregator, others + odd if late else odd + others)
        close(made.params, fair.params)
        assert made.params_type == kind
        assert rejected(aggregator) == {BAD}
        assert aggregator.record.metrics["fedwarden/combined"] == N - 1


@pytest.mark.parametrize("bad", BAD_STEPS)
def test_a_count_that_is_none_costs_its_site_the_round(bad):
    aggregator = guarded()
    odd = answer(BAD, sent(BAD, model(), ParamsType.FULL), steps=BAD_STEPS[bad])
    made = combine(aggregator, [*crowd(but=[BAD]), odd])
    close(made.params, combine(guarded(), crowd(but=[BAD])).params)
    assert rejected(aggregator) == {BAD}


@pytest.mark.parametrize("kind", KINDS)
def test_the_minority_that_sends_the_other_type_is_left_out(kind):
    other = next(k for k in KINDS if k is not kind)
    aggregator = guarded()
    odd = [answer(site, sent(site, model(), other), other) for site in SITES[:3]]
    made = combine(aggregator, odd + crowd(kind, but=SITES[:3]))
    close(made.params, combine(guarded(), crowd(kind, but=SITES[:3])).params)
    assert (made.params_type, rejected(aggregator)) == (kind, set(SITES[:3]))
    assert "most sites sent" in str(aggregator.record.rejected[0].reason)


def test_of_two_models_of_one_site_the_first_counts():
    aggregator = guarded()
    again = answer(BAD, {k: v + 1000 for k, v in sent(BAD, model(), ParamsType.FULL).items()})
    made = combine(aggregator, [*crowd(), again])
    close(made.params, combine(guarded(), crowd()).params)
    assert [(r.client_id, r.reason.kind) for r in aggregator.record.rejected] == [(BAD, "answered_twice")]


dtypes = st.sampled_from(["float16", "float32", "float64", "int8", "int64", "uint16", "bool", "complex64", ">f4"])
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
numbers = st.floats(width=32) | st.integers(-(2**70), 2**70) | st.booleans()
scalars = numbers | st.none() | st.text(max_size=5) | st.binary(max_size=5)
arrays = st.builds(lambda value, shape, dtype: cast(value, shape, dtype), st.floats(width=16), shapes, dtypes)
anything = st.recursive(scalars | arrays, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
names = st.sampled_from(["fc.weight", "fc.bias", "scale", "more"]) | st.text(max_size=4) | st.integers()


def cast(value, shape, dtype):
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.full(shape, value).astype(dtype)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(names, anything, max_size=4), st.booleans(), anything, st.sampled_from(KINDS))
def test_no_contribution_whatever_harms_the_others(odd, whole, steps, kind):
    """Rubbish in place of some parameters or of all; what is let in after all moves no parameter far."""
    params = odd if not whole else {**sent(BAD, model(), kind), **odd}
    reply = FLModel(params_type=kind, params=params, meta={"client_name": BAD, STEPS: steps})
    aggregator = guarded(home="/dev/null/nowhere")
    made = combine(aggregator, [reply, *crowd(kind, but=[BAD])])
    new = FLModelUtils.update_model(FLModel(params=model()), made).params
    assert list(new) == list(model())
    for name, old in model().items():
        assert np.abs(new[name] - old + 0.1).max() < 0.1
    assert rejected(aggregator) <= {BAD}


NO_MODELS = {
    "nothing": lambda: None,
    "a number": lambda: 5,
    "a trap": Trap,
    "an empty model": FLModel,
    "metrics alone": lambda: FLModel(metrics={"accuracy": 1.0}),
    "no name": lambda: FLModel(params={"w": 1}),
}


@pytest.mark.parametrize("rubbish", NO_MODELS)
def test_what_is_no_model_of_a_named_site_is_left_out(rubbish):
    aggregator = guarded()
    made = combine(aggregator, [NO_MODELS[rubbish](), *crowd()])
    close(made.params, combine(guarded(), crowd()).params)
    assert rejected(aggregator) == {"unknown"}


@pytest.mark.parametrize("steps", [10, None, 7.5, np.int64(10), True])
def test_the_counts_of_fedavg_are_understood(steps):
    answers = [answer(site, sent(site, model(), ParamsType.FULL), steps=steps) for site in SITES]
    made = combine(guarded(warden="none"), answers)
    close(made.params, BaseFedAvg.aggregate_fn(answers).params)


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_guard_it_is_fedavg_by_steps(kind):
    """``none`` believes counts up to ten times the median one, as NVIDIA FLARE believes all."""
    answers = [answer(s, sent(s, model(), kind), kind, steps=10 + i) for i, s in enumerate(SITES)]
    made = combine(guarded(warden="none"), answers)
    close(made.params, BaseFedAvg.aggregate_fn(answers).params)


def test_a_site_that_truly_has_half_of_the_data_is_believed_by_name():
    answers = crowd(ParamsType.DIFF)
    answers[0].meta[STEPS] = 70  # as many as the seven others have together
    aggregator = guarded(shares={SITES[0]: 0.5})
    combine(aggregator, answers)
    assert aggregator.record.weights[0] == pytest.approx(0.5)
    aggregator = guarded()
    combine(aggregator, answers)
    assert aggregator.record.weights[0] == pytest.approx(1 / N)


def test_another_entry_of_meta_can_be_the_weight():
    answers = crowd(ParamsType.DIFF)
    for i, reply in enumerate(answers):
        reply.meta["examples"] = 10.0 + i
    aggregator = guarded(warden="none", weigh_by="examples")
    combine(aggregator, answers)
    assert aggregator.record.num_examples.tolist() == [10.0 + i for i in range(N)]


def forms():
    base = model()
    yield "numpy", base
    yield "float64", {k: v.astype(np.float64) for k, v in base.items()}
    yield "float16", {k: v.astype(np.float16) for k, v in base.items()}
    yield "tensors", {k: torch.from_numpy(v.copy()) for k, v in base.items()}
    yield "bfloat16", {k: torch.from_numpy(v.copy()).bfloat16() for k, v in base.items()}
    yield "numbers", {"intercept": 0.5, "slope": np.float64(2.0), "w": np.ones(3)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("what", "base"), [*forms()], ids=lambda v: v if isinstance(v, str) else "")
def test_the_new_model_has_the_types_of_the_old_one(what, base, kind):
    numbers = {k: v.float().numpy() if isinstance(v, torch.Tensor) else np.asarray(v) for k, v in base.items()}
    answers = []
    for site in SITES:
        params = sent(site, numbers, kind)
        for k, v in base.items():
            params[k] = torch.from_numpy(params[k].copy()).to(v.dtype) if isinstance(v, torch.Tensor) else params[k]
        answers.append(answer(site, params, kind))
    before = {k: v.clone() if isinstance(v, torch.Tensor) else np.copy(v) for k, v in base.items()}
    made = combine(guarded(base), answers)
    assert made.params_type == kind
    server = FLModel(params=dict(base))
    new = FLModelUtils.update_model(server, made).params  # what NVIDIA FLARE's server does with it
    for name, old in before.items():
        assert getattr(made.params[name], "dtype", None) == getattr(base[name], "dtype", np.dtype(np.float64))
        assert isinstance(made.params[name], torch.Tensor) == isinstance(base[name], torch.Tensor)
        step = np.asarray(torch.as_tensor(new[name]).float()) - np.asarray(torch.as_tensor(old).float())
        np.testing.assert_allclose(step, -0.1, atol=0.06)


def test_other_float_types_are_converted_with_a_note():
    answers = crowd(but=[BAD])
    answers.append(answer(BAD, {k: v.astype(np.float64) for k, v in sent(BAD, model(), ParamsType.FULL).items()}))
    aggregator = guarded()
    made = combine(aggregator, answers)
    close(made.params, combine(guarded(), crowd()).params)
    assert all(v.dtype == np.float32 for v in made.params.values())
    assert ("converted", (BAD,)) in [(n.kind, n.clients) for n in aggregator.record.notes]


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_on_disk_are_loaded(kind, tmp_path):
    """References as NVIDIA FLARE passes them with ``enable_tensor_disk_offload``; the files go when they are gone."""
    answers = []
    for site in SITES:
        folder = tmp_path / site
        folder.mkdir()
        tensors = {k: torch.from_numpy(v.copy()) for k, v in sent(site, model(), kind).items()}
        save_file(tensors, folder / "chunk.safetensors")
        lazy = LazyTensorDict({k: (str(folder / "chunk.safetensors"), k) for k in tensors}, str(folder))
        answers.append(answer(site, {k: lazy.make_lazy_ref(k) for k in tensors}, kind))
        del lazy
    base = {k: torch.from_numpy(v.copy()) for k, v in model().items()}
    aggregator = guarded(base)
    made = combine(aggregator, answers)
    fair = combine(guarded(), crowd(kind))
    close(made.params, fair.params)
    assert not aggregator.record.rejected
    aggregator.reset_stats()
    del answers
    assert list(tmp_path.glob("site-*")) == []


def stored(folder, tensors):
    folder.mkdir()
    save_file(tensors, folder / "chunk.safetensors")
    lazy = LazyTensorDict({k: (str(folder / "chunk.safetensors"), k) for k in tensors}, str(folder))
    return {k: lazy.make_lazy_ref(k) for k in tensors}


def test_references_stay_in_their_file_which_is_mapped_once(tmp_path):
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.float16)}
    found = contribution(BAD, answer(BAD, stored(tmp_path / "a", tensors)), "steps")
    assert {type(array) for array in found.arrays.values()} == {np.memmap}
    assert all(np.array_equal(found.arrays[name], tensor.numpy()) for name, tensor in tensors.items())
    form = Form.of(found.params)
    updates = cohort_of(1, open_letters([found], form, True, None)[0], form, None, None, {}).updates
    assert len(updates.maps) == 1  # so that its pages can be given back
    odd = contribution(BAD, answer(BAD, stored(tmp_path / "b", {"a": torch.ones(3, dtype=torch.bfloat16)})), "steps")
    assert odd.arrays["a"].tolist() == [1.0] * 3


@pytest.mark.parametrize("left", [0, 4, 60, -8])
def test_a_file_that_is_cut_short_is_rejected(tmp_path, left):
    base = {k: torch.from_numpy(v.copy()) for k, v in model().items()}
    tensors = {k: torch.from_numpy(v.copy()) for k, v in sent(BAD, model(), ParamsType.FULL).items()}
    refs, cut = stored(tmp_path / "a", tensors), tmp_path / "a" / "chunk.safetensors"
    cut.write_bytes(cut.read_bytes()[:left])
    aggregator = guarded(base)
    made = combine(aggregator, [answer(BAD, refs), *crowd(but=[BAD])])
    assert rejected(aggregator) == {BAD}
    assert all(np.isfinite(value).all() for value in made.params.values())


NORMED = {"fc.weight": (4, 3), "bn.running_var": (5,), "bn.num_batches_tracked": (), "fc.bias": (4,), "order": (3,)}


def normed():
    whole = ("order", "bn.num_batches_tracked")
    return {k: np.ones(s, np.int64 if k in whole else np.float32) for k, s in NORMED.items()}


def normed_answer(site, kind, poison=None):
    base, rng = normed(), np.random.default_rng(int(site[-1]))
    made = {k: np.asarray(v - 0.1 + 0.02 * rng.normal(size=v.shape), v.dtype) for k, v in base.items()}
    made["order"], made["bn.num_batches_tracked"] = base["order"], base["bn.num_batches_tracked"] + 50
    made |= poison or {}
    return answer(site, made if kind is ParamsType.FULL else {k: v - base[k] for k, v in made.items()}, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_measured_cannot_be_poisoned(kind):
    poison = {"bn.running_var": np.full(5, 42.0, np.float32), "order": np.array([500, -7, 3])}
    answers = [normed_answer(site, kind, poison if site == BAD else None) for site in SITES]
    aggregator = guarded(normed(), warden="pid_made")
    new = FLModelUtils.update_model(FLModel(params=normed()), combine(aggregator, answers)).params
    assert new["order"].tolist() == [1, 1, 1]
    assert int(new["bn.num_batches_tracked"]) == 51
    assert np.abs(new["bn.running_var"] - 0.9).max() < 0.1
    assert any(n.kind == "buffers_far" and n.clients == (BAD,) for n in aggregator.record.notes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_the_model_that_all_sites_keep_back_stays_as_it_is(kind):
    """As with NVIDIA FLARE's filter ExcludeVars; who then sends the whole model is the odd one."""
    part = [answer(s, {k: v for k, v in sent(s, model(), kind).items() if k != "scale"}, kind) for s in SITES[:-1]]
    aggregator = guarded()
    made = combine(aggregator, [*part, *crowd(kind, but=SITES[:-1])])
    new = FLModelUtils.update_model(FLModel(params=model()), made).params
    assert list(new) == list(model())
    assert new["scale"] == model()["scale"]
    np.testing.assert_allclose(new["fc.bias"] - model()["fc.bias"], -0.1, atol=0.05)
    assert rejected(aggregator) == {SITES[-1]}


def test_a_model_that_the_server_does_not_show_is_the_median_of_the_first_round():
    aggregator = GuardedAggregator()
    far = answer(BAD, {k: v + 1e3 for k, v in model().items()})
    made = combine(aggregator, [far, *crowd(but=[BAD])])
    assert "base_unknown" in [n.kind for n in aggregator.record.notes]
    assert all(np.abs(v - model()[k] + 0.1).max() < 0.05 for k, v in made.params.items())
    aggregator.reset_stats()
    again = combine(aggregator, [answer(s, sent(s, made.params, ParamsType.FULL, 2)) for s in SITES])
    assert "base_unknown" not in [n.kind for n in aggregator.record.notes]
    assert all(np.abs(v - made.params[k] + 0.1).max() < 0.05 for k, v in again.params.items())


def test_a_model_without_floats_is_kept_and_said_so():
    base = {"trees": np.arange(5)}
    aggregator = guarded(base)
    made = combine(aggregator, [answer(site, {"trees": np.arange(5) + 1}) for site in SITES])
    assert made.params["trees"].tolist() == [0, 1, 2, 3, 4]
    assert [n.kind for n in aggregator.record.notes] == ["nothing_to_measure"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_the_guard_keeps_the_model_and_is_in_the_ledger(kind, monkeypatch):
    aggregator = guarded(run_name="job")
    combine(aggregator, crowd(kind))
    aggregator.reset_stats()
    show(aggregator, model())
    monkeypatch.setattr(aggregator.service.guard, "step", lambda *_: 1 / 0)
    made = combine(aggregator, crowd(kind))
    assert made.params_type == kind
    close(FLModelUtils.update_model(FLModel(params=model()), made).params, model())
    aggregator.close()
    with Ledger() as ledger:
        record = ledger.record(1, 2)
    assert [n.kind for n in record.notes] == ["guard_failed"]
    assert "ZeroDivisionError" in str(record.notes[0]) or "division by zero" in str(record.notes[0])


def test_an_error_in_telling_of_an_error_ends_nothing(monkeypatch):
    aggregator = guarded()
    monkeypatch.setattr(aggregator.service, "_keep", lambda *_: 1 / 0)
    close(combine(aggregator, crowd()).params, model())


def test_a_round_without_models_keeps_the_model():
    close(combine(guarded(), []).params, model())
    unknown = GuardedAggregator().aggregate_model()
    server = FLModel(params=model())
    close(FLModelUtils.update_model(server, unknown).params, model())


@pytest.mark.parametrize(("own", "wait"), [(0, 5.0), (0, 500.0), (7, 5.0), (0, None)])
def test_once_most_sites_have_answered_the_round_is_bounded_and_silent_sites_are_named(own, wait):
    """A controller's own timeout stays; else as long again as most sites took, and at least ``wait``."""
    task = SimpleNamespace(targets=SITES, timeout=own, schedule_time=time.time() - 100)
    communicator = SimpleNamespace(process_task_check=lambda number, fl_ctx: SimpleNamespace(task=task))
    workflow = SimpleNamespace(controller=SimpleNamespace(communicator=communicator))
    fl_ctx, aggregator = context(), guarded(wait=wait)
    fl_ctx.set_prop(FLContextKey.RUNNER, SimpleNamespace(current_wf=workflow), private=True, sticky=False)
    for i, reply in enumerate(crowd(but=SITES[6:]), 1):
        aggregator.accept_model(reply)
        aggregator.handle_event(AppEventType.AFTER_CONTRIBUTION_ACCEPT, fl_ctx)
        bounded = own == 0 and wait is not None and i > N / 2
        assert task.timeout == (pytest.approx(100 + max(wait, 100), abs=30) if bounded else own)
    aggregator.aggregate_model()
    assert [(r.client_id, r.reason.kind) for r in aggregator.record.rejected] == [(s, "no_answer") for s in SITES[6:]]


def test_a_ledger_that_cannot_be_written_ends_nothing(tmp_path):
    (tmp_path / "file").write_text("no folder")
    aggregator = guarded(home=str(tmp_path / "file"))
    made = combine(aggregator, crowd())
    close(made.params, combine(guarded(), crowd()).params)
    aggregator.close()


def test_nothing_of_the_guard_is_sent_on_to_the_sites():
    """The server sends a new model with its meta and metrics to every site, an attacker's too."""
    answers = crowd()
    answers[0] = answer(SITES[0], {k: v * np.nan for k, v in model().items()})
    made = combine(guarded(), answers)
    assert made.meta == {}
    assert made.metrics is None
    assert SITES[0] not in str(vars(made))


def test_metrics_are_averaged_and_a_lie_is_bounded():
    answers = crowd()
    for reply in answers:
        reply.metrics = {"accuracy": 0.5, "loss": 2.0, "confusion": [[1, 2], [3, 4]], "broken": math.nan}
    answers[0].metrics = {"accuracy": 1e300, "loss": 2.0, "only mine": 5.0, 7: 1.0}
    aggregator = guarded()
    made = combine(aggregator, answers)
    assert made.metrics["loss"] == pytest.approx(2.0)
    assert made.metrics["accuracy"] == pytest.approx((7 * 0.5 + 5.0) / 8)  # ten times the next one's
    assert set(made.metrics) == {"accuracy", "loss"}  # what most sites sent
    assert aggregator.record.reported["train/only mine"] == {SITES[0]: 5.0}
    assert ("metric_bounded", (SITES[0],)) in [(n.kind, n.clients) for n in aggregator.record.notes]
    assert aggregator.record.metrics["train/loss"] == pytest.approx(2.0)


@pytest.mark.parametrize("metrics", [None, "loss"])
def test_what_jurors_send_as_a_metric_reaches_the_guard(metrics):
    """Of all sites that send it, the named one is heard."""
    aggregator = guarded(options={"jurors": [SITES[1]]}, metrics=metrics)
    sites = enumerate(SITES)
    combine(
        aggregator, [answer(s, sent(s, model(), ParamsType.FULL), metrics={"worse": 0.1 * i + 0.2}) for i, s in sites]
    )
    assert [number for number, _ in aggregator.service.guard.memory.hearings.past] == pytest.approx([0.3])


def test_pairs_are_refused_since_no_site_can_be_sent_a_model_of_its_own():
    with pytest.raises(ConfigError, match="an aggregator of NVIDIA FLARE cannot: leave it out"):
        guarded(options={"jurors": SITES[:3], "paired": True})


def test_the_order_of_answers_changes_no_bit():
    made, other = combine(guarded(), crowd()), combine(guarded(), reversed(crowd()))
    for name, value in made.params.items():
        np.testing.assert_array_equal(value, other.params[name])


def test_models_may_come_in_many_threads():
    aggregator = guarded()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(aggregator.accept_model, crowd() + crowd()))
    close(aggregator.aggregate_model().params, combine(guarded(), crowd()).params)
    assert len(aggregator.record.rejected) == N  # each came twice


def test_names_and_words_of_sites_steer_no_terminal(caplog):
    aggregator = guarded()
    combine(aggregator, [*crowd(), answer("bad\x1b[2J\r", {"w\x1b[2J": "x"}), answer("half \ud83d", {})])
    assert "\x1b" not in caplog.text
    assert "bad\\x1b[2J" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_in_nvflares_own_fedavg_an_attacker_is_skipped_by_name(kind):
    """Sites that hold alike data: the attacker is skipped once it is in doubt, and shortened before."""
    aggregator = GuardedAggregator(run_name="job", options={"alike": True})
    sites = {s: reversing(s, kind) if s == BAD else honest(s, kind) for s in SITES}
    controller = LocalFedAvg(sites, aggregator, model(), rounds=6)
    controller.run()
    controller.event(EventType.END_RUN)
    assert RoundStory(aggregator.record).in_doubt.get(BAD) == "skipped"
    assert aggregator.record.weights[aggregator.record.client_ids.index(BAD)] == 0
    step = controller.model.params["fc.bias"] - model()["fc.bias"]
    with Ledger() as ledger:
        tried = sum(r.weights[r.client_ids.index(BAD)] > 0 for r in ledger.records(1))
        assert tried == 1  # before any evidence; it is then 1.5 median lengths long and points the other way
        assert np.abs(step + 0.6 - tried * (0.1 + 0.15) / N).max() < 0.05
        (run,) = ledger.runs()
        assert (run.name, run.engine, run.state) == ("job", "nvflare", "done")
        assert run.config["guard"] == {"preset": "auto", "options": {"alike": True}}
        assert run.config["secret"] == aggregator.service.guard.guard.secret
        assert run.config["rounds"] == 6
        assert ledger.last_round(run.id) == 6


def test_in_a_workflow_of_shareables_the_name_is_the_servers():
    """ScatterAndGather passes what a site sent as it is; there a site could write another name into the meta."""
    fl_ctx = context()
    fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, {"weights": model(), "meta": {}}, private=True, sticky=True)
    aggregator = GuardedAggregator()
    for site in SITES:
        dxo = DXO(DataKind.WEIGHT_DIFF, sent(site, model(), ParamsType.DIFF), meta={STEPS: 10, "client_name": SITES[0]})
        shareable = dxo.to_shareable()
        shareable.set_peer_props({ReservedKey.IDENTITY_NAME: site})
        assert aggregator.accept(shareable, fl_ctx)
    assert not aggregator.accept(Shareable(), fl_ctx)
    made = FLModelUtils.from_shareable(aggregator.aggregate(fl_ctx))
    assert aggregator.record.client_ids == tuple(SITES)
    assert rejected(aggregator) == {"unknown"}
    assert made.params_type == ParamsType.DIFF
    close(made.params, combine(guarded(), crowd(ParamsType.DIFF)).params)
    aggregator.reset(fl_ctx)
    assert not aggregator.came


def test_what_cannot_be_used_is_told_when_the_job_is_made():
    with pytest.raises(ConfigError, match="did you mean 'auto'"):
        GuardedAggregator("atuo")
    with pytest.raises(ConfigError, match="carries the name of a preset"):
        GuardedAggregator("")
    with pytest.raises(ConfigError, match="options are those of a preset"):
        GuardedAggregator(fw.Warden.preset("pid_made"), {"k": 3.0})
    with pytest.raises(ValueError, match="site-1: a share lies in"):
        GuardedAggregator(shares={"site-1": 2.0})
    assert GuardedAggregator(fw.Warden.preset("pid_made")).warden == ""
    assert GuardedAggregator("pid_made", {"k": 3.0}).service.guard.watches[0].rule.k == 3.0
    trimmed = GuardedAggregator(aggregator={"name": "trimmed_mean", "b": 1})
    assert repr(trimmed.service.guard).endswith("'trimmed_mean')")
