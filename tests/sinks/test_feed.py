"""Rounds reach a sink once each, whatever happens to it, and the run goes on."""

import sys

import pytest

from fedwarden.core.errors import ConfigError, MissingExtra
from fedwarden.core.registry import make
from fedwarden.sinks.feed import Feed, Live, SinkError

from .conftest import round_of


class Memory:
    """A sink that keeps what it gets and can be away."""

    def __init__(self):
        self.rounds, self.away, self.states = [], False, []

    def __call__(self, run):
        if self.away:
            raise ConnectionError("nobody\nanswers")
        return self

    @property
    def last(self):
        return max(self.rounds, default=0)

    def write(self, record, points):
        if self.away:
            raise OSError("disk full")
        self.rounds.append(record.round)

    def close(self, state):
        self.states.append(state)


def test_what_is_there_is_not_sent_again(ledger, run):
    sink = Memory()
    assert Feed(sink).send(ledger, run) == 3
    assert Feed(sink).send(ledger, run) == 0
    ledger.append(run, round_of(3, "ab"))  # played again after a resume
    ledger.append(run, round_of(4, "ab"))
    assert Feed(sink).send(ledger, run) == 1
    assert sink.rounds == [1, 2, 3, 4]


def test_a_sink_that_was_away_gets_what_it_missed(ledger, run):
    sink = Memory()
    live = Live([Feed(sink)])
    assert live.send(ledger, run) == []
    sink.away = True
    ledger.append(run, round_of(4, "ab"))
    assert list(map(str, live.send(ledger, run))) == [
        "the sink 'Memory' could not take round 4: disk full; it is tried again after the next round"
    ]
    sink.away = False
    ledger.append(run, round_of(5, "ab"))
    assert live.send(ledger, run) == []
    assert sink.rounds == [1, 2, 3, 4, 5]
    live.close("done")
    assert sink.states == ["running", "done"]


def test_a_sink_that_stays_away_is_left_alone(ledger, run):
    sink = Memory()
    sink.away = True
    live, said = Live([Feed(sink)]), []
    for t in range(4, 10):
        ledger.append(run, round_of(t, "ab"))
        said.append(live.send(ledger, run))
    assert [len(notes) for notes in said] == [1, 0, 1, 0, 0, 0]
    assert str(said[0][0]).startswith("the sink 'Memory' could not be opened: nobody answers")
    assert str(said[2][0]).endswith(f"nothing more is sent to it; fedwarden send {run} --to Memory sends the rest")
    sink.away = False
    assert live.send(ledger, run) == []
    assert sink.rounds == []


def test_one_sink_does_not_stand_in_anothers_way(ledger, run):
    broken, sound = Memory(), Memory()
    broken.away = True
    assert len(Live([Feed(broken), Feed(sound)]).send(ledger, run)) == 1
    assert sound.rounds == [1, 2, 3]


def test_clients_that_are_left_out_are_noted_once(ledger, run):
    live = Live([Feed(Memory(), most=2)])
    (note,) = live.send(ledger, run)
    assert "most=2" in str(note)
    ledger.append(run, round_of(4, "abc"))
    assert live.send(ledger, run) == []


def test_afterwards_a_failure_is_an_error(ledger, run):
    sink = Memory()
    sink.away = True
    with pytest.raises(SinkError, match="could not be opened: nobody answers"):
        Feed(sink).send(ledger, run)


def test_a_table_has_the_options_of_the_sink_and_of_the_feed(tmp_path):
    feed = Feed.of({"name": "tensorboard", "folder": str(tmp_path), "most": 5, "clients": "flagged"})
    assert (feed.name, feed.most, feed.clients, feed.sink.folder) == ("tensorboard", 5, "flagged", str(tmp_path))
    assert Feed.of("tensorboard").most == 200
    with pytest.raises(ConfigError, match="'all' or 'flagged'"):
        Feed.of({"name": "tensorboard", "clients": "some"})


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("tensorboard", "tensorboard", "tensorboard"),
        ("mlflow", "mlflow.tracking", "mlflow"),
        ("opentelemetry", "opentelemetry.exporter.otlp.proto.http.metric_exporter", "opentelemetry"),
        ("prometheus", "prometheus_client", "prometheus"),
    ],
)
def test_without_its_package_a_sink_says_what_to_install(name, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'fedwarden\[{extra}\]'"):
        make("sink", name)
