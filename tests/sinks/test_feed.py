"""Rounds reach a sink once each, and what a sink takes."""

import sys

import pytest

from fedwarden.core.errors import ConfigError, FedwardenError, MissingExtra
from fedwarden.core.registry import make
from fedwarden.sinks.feed import Feed

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


def test_afterwards_a_failure_is_an_error(ledger, run):
    sink = Memory()
    sink.away = True
    with pytest.raises(FedwardenError, match="could not be opened: nobody answers"):
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
