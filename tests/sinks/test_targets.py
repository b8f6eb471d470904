"""What arrives, read back with the target's own means."""

from urllib.error import URLError

import pytest

from fedwarden.core.errors import FedwardenError
from fedwarden.core.registry import make
from fedwarden.sinks.data_points import data_points
from fedwarden.sinks.feed import Feed

from . import readers
from .conftest import HOSTILE, round_of
from .test_every import free_port


def expected(ledger, run):
    found = {}
    for record in ledger.records(run):
        for point in data_points(record):
            found.setdefault(point.tag, {})[record.round] = pytest.approx(point.value, rel=1e-6)
    return found


def test_tensorboard_has_every_number_and_the_reasons(ledger, run, tmp_path):
    feed = Feed(make("sink", "tensorboard", folder=str(tmp_path / "tb")))
    feed.send(ledger, run)
    feed.close("done")
    found, texts = readers.tensorboard(tmp_path / "tb")
    assert found == expected(ledger, run)
    assert found["watch/near/score/c"] == {1: 12.0, 2: 22.0}
    assert texts == {2: "    client stranger: 2 arrays, expected 4"}


def test_a_round_cut_in_the_middle_is_no_round_for_tensorboard(ledger, run, tmp_path):
    sink = make("sink", "tensorboard", folder=str(tmp_path / "tb"))
    feed = Feed(sink)
    feed.send(ledger, run)
    feed.close("done")
    (path,) = (tmp_path / "tb").glob("*/events.*")
    path.write_bytes(path.read_bytes()[:-100])
    assert Feed(sink).send(ledger, run) == 1
    found, _ = readers.tensorboard(tmp_path / "tb")
    assert found == expected(ledger, run)


def test_mlflow_has_every_number_and_the_reasons(ledger, run, database):
    feed = Feed(make("sink", "mlflow", uri=database))
    feed.send(ledger, run)
    feed.close("done")
    found, target = readers.mlflow(database)
    assert found == expected(ledger, run)
    assert target.data.tags["rejected/2"] == "client stranger: 2 arrays, expected 4"
    assert target.info.status == "FINISHED"


def test_two_senders_at_once_do_not_double_what_mlflow_has(ledger, run, database):
    sink = make("sink", "mlflow", uri=database)
    one, other = sink(ledger.run(run)), sink(ledger.run(run))
    for record in ledger.records(run):
        one.write(record, data_points(record))
        other.write(record, data_points(record))
    assert readers.mlflow(database)[0] == expected(ledger, run)


def test_mlflow_takes_more_numbers_than_one_of_its_batches(ledger, database):
    number = ledger.start("wide", "in-process", {}, {})
    ledger.append(number, round_of(1, [f"c{i}" for i in range(200)]))
    Feed(make("sink", "mlflow", uri=database)).send(ledger, number)
    _, target = readers.mlflow(database, history=False)
    assert len(target.data.metrics) == 2 + 2 * (1 + 3 * 200) + 4 * 200 + 4


def by_labels(name, **labels):
    return (name, frozenset(labels.items()))


def test_a_collector_gets_the_newest_round_as_gauges(ledger, run):
    with readers.OtlpServer() as collector:
        feed = Feed(make("sink", "opentelemetry", endpoint=collector.url))
        assert feed.send(ledger, run) == 1
        ledger.append(run, round_of(4, "xy"))
        assert feed.send(ledger, run) == 1
        feed.close("done")
    third, fourth = collector.requests
    assert third[by_labels("fedwarden.watch.score", watch="far", client="b")] == 31.0
    assert third[by_labels("fedwarden.client.excluded", client="c")] == 1.0
    assert third[by_labels("fedwarden.metric", metric="accuracy")] == pytest.approx(0.8)
    assert third[by_labels("fedwarden.round.number")] == 3.0
    assert len(third) == len(data_points(ledger.record(run, 3))) + 1
    assert fourth[by_labels("fedwarden.watch.threshold", watch="near")] == 40.5
    assert by_labels("fedwarden.client.weight", client="b") not in fourth


def test_prometheus_fetches_the_newest_round_while_the_run_lasts(ledger, run):
    port = free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    feed = Feed(make("sink", "prometheus", port=port))
    feed.send(ledger, run)
    assert readers.samples(url) == readers.samples(url)
    found = readers.samples(url)
    assert found[by_labels("fedwarden_watch_score", watch="far", client="b")] == 31.0
    assert found[by_labels("fedwarden_round_excluded")] == 1.0
    assert len(found) == len(data_points(ledger.record(run, 3))) + 1
    ledger.append(run, round_of(4, HOSTILE))
    feed.send(ledger, run)
    found = readers.samples(url)
    assert found[by_labels("fedwarden_client_examples", client="a:2Fb")] == 100.0
    assert by_labels("fedwarden_client_weight", client="b") not in found
    feed.close("done")
    with pytest.raises(URLError):
        readers.samples(url)


def test_a_port_in_use_is_an_error_that_names_the_sink(ledger, run):
    port = free_port()
    first, second = (Feed(make("sink", "prometheus", port=port)) for _ in range(2))
    first.send(ledger, run)
    with pytest.raises(FedwardenError, match="'prometheus' could not be opened"):
        second.send(ledger, run)
    first.close("done")
