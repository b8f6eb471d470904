"""A job that was cut off and is started again goes on with the guard's state, as if nothing had happened."""

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="the extra 'nvflare' is not installed")

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.signal import Signal

from fedwarden import Warden
from fedwarden.nvflare import GuardedAggregator
from fedwarden.store.checkpoint import saved
from fedwarden.store.ledger import Ledger
from one_story import agree

from .sites import BAD, SITES, LocalFedAvg, answer, honest, model


def drifting(site):
    """A site that attacks a little: it takes some rounds of evidence to find it."""

    def reply(asked):
        rng = np.random.default_rng(asked.current_round)
        return [answer(site, {k: v + 0.02 + 0.02 * rng.normal(size=v.shape) for k, v in asked.params.items()})]

    return reply


def sites(start=0):
    """Sites whose rounds go on where those of another job ended."""

    def at(site):
        make = drifting(site) if site == BAD else honest(site)

        def reply(asked):
            asked.current_round += start
            return make(asked)

        return reply

    return {site: at(site) for site in SITES}


def job(rounds, params=None, start=0, **options):
    """A job of some rounds that ends without a word, as a server does that is killed."""
    aggregator = GuardedAggregator(run_name="job", **options)
    controller = LocalFedAvg(sites(start), aggregator, params or model(), rounds)
    controller.run()
    return controller, aggregator


def end(aggregator):
    """What the operating system does to a process that was killed: its files are closed and its locks are gone."""
    aggregator.service.journal.recorder.close()


@pytest.mark.parametrize("cut", [1, 3])
def test_a_job_that_is_started_again_goes_on_with_the_guards_state(cut):
    """The server that goes on has drawn another secret; sites in doubt take the turns of the recorded one."""
    whole, through = job(8, warden=Warden.preset("auto", secret=7))
    through.close()
    first, before = job(cut, resume=True, warden=Warden.preset("auto", secret=7))
    end(before)
    second, after = job(8 - cut, first.model.params, start=cut, resume=True)
    after.close()
    assert after.record.round == 8
    np.testing.assert_array_equal(second.model.params["fc.weight"], whole.model.params["fc.weight"])
    assert after.service.guard.memory.doubted == through.service.guard.memory.doubted == {BAD}
    with Ledger() as ledger:
        assert [(run.id, run.state, run.config["secret"]) for run in ledger.runs()] == [(2, "done", 7), (1, "done", 7)]
        for t in range(1, 9):
            one, two = ledger.record(1, t), ledger.record(2, t)
            np.testing.assert_array_equal(one.weights, two.weights)
            for a, b in zip(one.watches, two.watches, strict=True):
                np.testing.assert_array_equal(a.scores, b.scores)


def test_a_run_without_a_sound_checkpoint_starts_anew_and_the_job_goes_on(caplog, workspace):
    end(job(2)[1])
    for path in saved(workspace, 1).values():
        path.write_bytes(b"rubbish")
    _, after = job(2, resume=True)
    after.close()
    assert after.record.round == 2
    assert "the last run cannot be continued: no checkpoint of run 1 can be used" in caplog.text
    with Ledger() as ledger:
        assert [(run.id, run.state) for run in ledger.runs()] == [(2, "done"), (1, "interrupted")]


def test_a_run_that_another_process_writes_is_left_alone(caplog):
    _, still = job(2)  # never closed
    _, after = job(2, resume=True)
    assert "the last run cannot be continued" in caplog.text
    assert after.service.journal.recorder.run == 2
    for aggregator in (still, after):
        aggregator.close()


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([EventType.END_RUN], "done"),
        ([EventType.FATAL_SYSTEM_ERROR, EventType.END_RUN], "failed"),
        (["aborted", EventType.END_RUN], "interrupted"),
    ],
)
def test_the_end_of_a_job_is_recorded(events, state):
    controller, aggregator = job(1)
    for event in events:
        if event == "aborted":
            signal = Signal()
            signal.trigger(True)
            controller.fl_ctx.set_prop(ReservedKey.RUN_ABORT_SIGNAL, signal, private=True, sticky=False)
        else:
            controller.event(event)
    aggregator.close()  # a second end changes nothing
    with Ledger() as ledger:
        (run,) = ledger.runs()
    assert run.state == state


def test_a_run_has_the_name_of_its_job_and_the_version_of_nvflare():
    aggregator = GuardedAggregator()
    controller = LocalFedAvg(sites(), aggregator, model(), 1)
    controller.fl_ctx.set_prop(FLContextKey.JOB_META, {"name": "hospitals"}, private=True, sticky=False)
    controller.event(EventType.START_RUN)
    controller.run()
    controller.event(EventType.END_RUN)
    with Ledger() as ledger:
        (run,) = ledger.runs()
    assert run.name == "hospitals"


def test_rounds_are_sent_to_sinks(tmp_path):
    pytest.importorskip("tensorboard")
    _, aggregator = job(2, sinks=[{"name": "tensorboard", "folder": str(tmp_path / "board")}])
    aggregator.close()
    assert list((tmp_path / "board").rglob("events.out.*"))


def test_what_is_said_of_a_site_is_the_same_everywhere(tmp_path):
    aggregator = GuardedAggregator("pid_made", home=str(tmp_path))
    far = {site: honest(site) for site in SITES} | {
        BAD: lambda asked: [answer(BAD, {k: v + 9 for k, v in asked.params.items()})]
    }
    LocalFedAvg(far, aggregator, model(), 3).run()
    aggregator.close()
    assert agree(tmp_path, 1)[BAD].startswith(f"Client {BAD} was excluded in round 2: ")
