"""A guard over column shards decides as one in one process does, whatever becomes of a worker; with real Ray actors."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import ray
import torch

import fedwarden as fw
from fedwarden.core.registry import make, names
from fedwarden.shards import LostShard, NeedsRows, Shards

pytestmark = pytest.mark.slow

N, D, WORKERS = 9, 4001, 3
IDS = tuple(f"c{i}" for i in range(N))
COUNTS = 10.0 + np.arange(N)
BOUND = 1e-6  # of the largest entry of an update, and of a score: float32 sums in another order


@pytest.fixture(scope="module", autouse=True)
def running():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=4 * WORKERS, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20
    )  # fmt: skip
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def shards(running):
    with Shards(D, WORKERS) as found:
        yield found


def updates_of(seed, d=D):
    """Updates that agree in part; the last client sends the opposite, three times as long."""
    rng = np.random.default_rng(seed)
    rows = (rng.normal(size=d) + rng.normal(size=(N, d))).astype(np.float32)
    rows[-1] *= -3
    return rows


def saved(rows, folder):
    for client, row in zip(IDS, rows, strict=True):
        np.save(folder / f"{client}.npy", row)
    return [folder / f"{client}.npy" for client in IDS]


def taken(shards, updates, round=1, base=None):
    shards.begin(base)
    for client, update, count in zip(IDS, updates, COUNTS, strict=True):
        shards.take(client, update, count)
    return shards.cohort(round)


def written(shards, update, folder, **options):
    shards.write(update, folder / "out.npy", **options)
    assert not (folder / "out.npy.part").exists()
    return np.load(folder / "out.npy")


def plain(rows, round=1):
    return fw.Cohort(round, IDS, fw.Updates.of(rows), COUNTS)


def assert_same(record, other):
    """All that is decided is equal; what is measured is within the bound."""
    for name in ("round", "client_ids", "excluded", "suspended", "rejected"):
        assert getattr(record, name) == getattr(other, name), name
    assert [n.topic for n in record.notes] == [n.topic for n in other.notes]
    assert np.allclose(record.weights, other.weights, rtol=BOUND, atol=0)
    for watch, same in zip(record.watches, other.watches, strict=True):
        assert np.array_equal(watch.flagged, same.flagged), watch.name
        scale = np.nanmax(np.abs(same.scores), initial=1.0)
        assert np.allclose(watch.scores, same.scores, rtol=0, atol=10 * BOUND * scale, equal_nan=True), watch.name


def assert_near(found, update):
    assert np.abs(found - np.asarray(update)).max() <= BOUND * np.abs(np.asarray(update)).max()


@pytest.mark.parametrize("way", ["files", "handed over"])
@pytest.mark.parametrize("preset", ["pid_made", "auto"])
def test_rounds_are_those_of_one_process(shards, tmp_path, preset, way):
    one, many = (fw.Warden.preset(preset, secret=3) for _ in range(2))
    for t in range(1, 6):
        rows = updates_of(t)
        if t == 3:
            rows[2, D - 1] = np.nan  # in the last shard alone
        cohort, rejected = taken(shards, saved(rows, tmp_path) if way == "files" else rows, t)
        outcome, expected = many.step(cohort, rejected), one.step(plain(rows, t))
        assert_same(outcome.record, expected.record)
        assert_near(written(shards, outcome.update, tmp_path), expected.update)
    if preset == "pid_made":
        assert many.excluded == (IDS[-1],), "the attacker is out, and no other client"
        assert outcome.weights[-1] == 0
    else:
        assert many.memory.doubted == {IDS[-1]}, "the attacker is in doubt, and no other client"


def test_of_many_clients_the_workers_send_sketches(running):
    """As in one process, with the same draw."""
    n, d, ids, counts = 257, 9000, tuple(f"c{i}" for i in range(257)), np.full(257, 10.0)
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=d) + rng.normal(size=(n, d))).astype(np.float32)
    rows[: n // 5] *= -1
    rows[-1] = rows[-2]
    with Shards(d, 2) as some:
        for client, row in zip(ids, rows, strict=True):
            some.take(client, row, 10.0)
        found = fw.Warden.preset("auto", secret=3).decide(*some.cohort(1))
    expected = fw.Warden.preset("auto", secret=3).decide(fw.Cohort(1, ids, fw.Updates.of(rows), counts))
    assert_same(found.record(), expected.record())
    assert np.count_nonzero(found.weights[-2:]) == 1


def test_whole_models_are_taken_about_the_base_and_the_next_model_is_written(shards, tmp_path):
    rows, base = updates_of(0), np.linspace(-1, 1, D, dtype=np.float32)
    np.save(tmp_path / "model.npy", base)
    cohort, rejected = taken(shards, saved(base + rows, tmp_path), base=tmp_path / "model.npy")
    outcome = fw.Warden.preset("pid_made").step(cohort, rejected)
    expected = fw.Warden.preset("pid_made").step(plain(rows))
    assert_near(written(shards, outcome.update, tmp_path, add_base=True), base + expected.update.numpy())


def test_a_base_that_does_not_fit_is_the_servers_fault(shards, tmp_path):
    np.save(tmp_path / "model.npy", np.zeros(D - 1, np.float32))
    with pytest.raises(ValueError, match=rf"the base .*model.npy: its update has shape \({D - 1},\)"):
        shards.begin(tmp_path / "model.npy")
    shards.begin()


@pytest.mark.parametrize("moment", ["before the round is judged", "before it is combined", "before it is written"])
def test_a_lost_worker_is_replaced_and_its_shard_read_again(shards, tmp_path, moment):
    rows = updates_of(1)
    cohort, rejected = taken(shards, saved(rows, tmp_path))
    warden, expected = fw.Warden.preset("auto"), fw.Warden.preset("auto").step(plain(rows))
    lost = shards.workers[1]
    lose = lambda now: ray.kill(lost) if now == moment else None  # noqa: E731
    lose("before the round is judged")
    decision = warden.decide(cohort, rejected)
    lose("before it is combined")
    outcome = warden.combine(decision)
    lose("before it is written")
    assert_near(written(shards, outcome.update, tmp_path), expected.update)
    assert_same(outcome.record, expected.record)
    assert shards.workers[1] is not lost


def test_a_worker_that_dies_within_a_call_is_replaced_too(shards, tmp_path):
    rows, outcomes = updates_of(1), []
    cohort, rejected = taken(shards, saved(rows, tmp_path))
    pid = ray.get(shards.workers[2].__ray_call__.remote(lambda _: os.getpid()))
    os.kill(pid, signal.SIGSTOP)  # takes the call and does not answer
    round = threading.Thread(target=lambda: outcomes.append(fw.Warden.preset("auto").step(cohort, rejected)))
    round.start()
    time.sleep(0.5)
    assert round.is_alive()
    os.kill(pid, signal.SIGKILL)
    round.join(120)
    expected = fw.Warden.preset("auto").step(plain(rows))
    assert_same(outcomes[0].record, expected.record)
    assert_near(written(shards, outcomes[0].update, tmp_path), expected.update)


def test_what_was_handed_over_is_read_again_from_the_spool_which_goes_with_the_round(tmp_path):
    rows, spool = updates_of(1), tmp_path / "spool"
    spool.mkdir()
    with Shards(D, 2, spool=spool) as shards:
        shards.begin()
        for i, client in enumerate(IDS):
            shards.take(client, rows[i], COUNTS[i])
            if i == 4:
                ray.kill(shards.workers[0])  # while updates arrive
        cohort, rejected = shards.cohort(1)
        ray.kill(shards.workers[1])
        outcome, expected = (fw.Warden.preset("pid_made").step(*c) for c in [(cohort, rejected), (plain(rows),)])
        assert_near(written(shards, outcome.update, tmp_path), expected.update)
        assert len(list(spool.rglob("*.npy"))) == 2 * N
        shards.begin()
        assert not list(spool.rglob("*.npy"))
    assert not list(spool.iterdir())


def test_what_is_kept_nowhere_else_is_lost_and_whose_it_was_is_told(shards):
    cohort, rejected = taken(shards, updates_of(1))
    ray.kill(shards.workers[1])
    with pytest.raises(LostShard, match=r"worker 2 of 3, with columns 1333 to 2666, .*c0: .*no copy of it is kept"):
        fw.Warden.preset("pid_made").step(cohort, rejected)
    cohort, rejected = taken(shards, updates_of(1))  # the next round goes on
    assert len(fw.Warden.preset("pid_made").step(cohort, rejected).record.rejected) == 0


def test_a_file_that_is_gone_when_it_is_read_again_names_its_client(shards, tmp_path):
    paths = saved(updates_of(1), tmp_path)
    cohort, rejected = taken(shards, paths)
    paths[3].unlink()
    ray.kill(shards.workers[0])
    with pytest.raises(LostShard, match="client c3: its update cannot be read"):
        fw.Warden.preset("pid_made").step(cohort, rejected)


def test_an_update_that_does_not_fit_is_rejected_with_the_reason_and_the_round_goes_on(shards, tmp_path):
    rows = updates_of(0)
    good = saved(rows, tmp_path)
    short, text, pickled, archive = (tmp_path / f"bad{i}.npy" for i in range(4))
    short.write_bytes(good[0].read_bytes()[:-4])
    text.write_text("not an array")
    np.save(pickled, np.array([{}] * D, dtype=object), allow_pickle=True)
    with archive.open("wb") as file:
        np.savez(file, a=rows[0])
    np.save(tmp_path / "wide.npy", rows[0].astype(np.float64))
    np.save(tmp_path / "few.npy", rows[0][:-1])
    bad = {
        "missing": (tmp_path / "none.npy", "no file at"),
        "short": (short, "cannot be read"),
        "text": (text, "cannot be read"),
        "pickled": (pickled, "cannot be read"),
        "archive": (archive, "cannot be read"),
        "folder": (tmp_path, "no file at"),
        "wide": (tmp_path / "wide.npy", "has dtype float64; expected float32"),
        "few in a file": (tmp_path / "few.npy", f"has shape ({D - 1},); expected ({D},)"),
        "few": (rows[0][:-1], f"has shape ({D - 1},); expected ({D},)"),
        "half": (torch.zeros(D, dtype=torch.bfloat16), "cannot be read"),
        "ragged": ([[1.0], [1.0, 2.0]], "cannot be read"),
        "words": (["a"] * D, "has dtype <U1"),
    }
    shards.begin()
    for client, (update, _) in bad.items():
        shards.take(client, update, 10)
    for client, update, count in zip(IDS, good, COUNTS, strict=True):
        shards.take(client, update, count)
    shards.take("c0", rows[1], 10)
    shards.take("many", rows[1], "many")
    outcome = fw.Warden.preset("pid_made").step(*shards.cohort(1))
    reasons = {r.client_id: str(r.reason) for r in outcome.record.rejected}
    for client, (_, words) in bad.items():
        assert words in reasons.pop(client), client
    assert reasons.pop("c0").startswith("answered more than once")
    assert reasons.pop("many").startswith("claims nan examples")
    assert not reasons
    assert_near(written(shards, outcome.update, tmp_path), fw.Warden.preset("pid_made").step(plain(rows)).update)


def test_a_round_in_which_nothing_is_left_writes_no_change(shards, tmp_path):
    base = np.linspace(-1, 1, D, dtype=np.float32)
    np.save(tmp_path / "model.npy", base)
    for updates in ([], np.full((N, D), np.nan, np.float32)):
        shards.begin(tmp_path / "model.npy")
        for client, update in zip(IDS, updates, strict=False):
            shards.take(client, update, 10)
        outcome = fw.Warden.preset("auto").step(*shards.cohort(1))
        assert outcome.update.device.type == "meta", "no d numbers on the server"
        assert not written(shards, outcome.update, tmp_path).any()
        assert np.array_equal(written(shards, outcome.update, tmp_path, add_base=True), base)


def test_without_a_running_ray_none_is_started():
    code = "from fedwarden.shards import Shards; Shards(4)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ConfigError: shards need a running Ray: call ray.init() first" in done.stderr.splitlines()[-1]


def test_a_process_without_the_token_is_kept_out_and_a_ray_without_one_is_refused(running, monkeypatch, tmp_path):
    address = ray.get_runtime_context().gcs_address
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")} | {"HOME": str(tmp_path)}
    code = f"import ray; ray.init(address={address!r}); print(ray.get(ray.remote(lambda: 'in').remote()))"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (1, "")
    assert "ConnectionError: Failed to connect to Ray cluster" in done.stderr
    monkeypatch.delenv("RAY_AUTH_MODE")
    with pytest.raises(ValueError, match="shards need a Ray with a secret"):
        Shards(D, WORKERS)


def test_more_workers_than_the_cluster_has_room_for_are_refused_rather_than_waited_for():
    with pytest.raises(ValueError, match=r"5 workers of 3 CPUs need 15; this Ray cluster has 12"):
        Shards(D, 5, cpus=3)
    with pytest.raises(ValueError, match=r"one column for each; got 5 for d=4"):
        Shards(4, 5)
    with pytest.raises(ValueError, match="shards hold float32 or float64; got int8"):
        Shards(D, 2, dtype="int8")


def test_the_updates_of_an_earlier_round_are_refused(shards, tmp_path):
    cohort, rejected = taken(shards, updates_of(0))
    outcome = fw.Warden.preset("pid_made").step(cohort, rejected)
    taken(shards, updates_of(1))
    with pytest.raises(LostShard, match="of an earlier round"):
        shards.write(outcome.update, tmp_path / "out.npy")
    with pytest.raises(LostShard, match="of an earlier round"):
        cohort.updates.gram()
    with pytest.raises(NeedsRows, match="not made by these shards"):
        shards.write(torch.zeros(D), tmp_path / "out.npy")


RULES = {"mean", "contained", "norm_clipping", "krum", "multi_krum", "bulyan", "median", "trimmed_mean"}
RULES |= {"geometric_median", "caf", "smea", "randeigen"}
SIGNALS = {"centroid_distance", "relative_distance", "direction", "opposition", "twins", "update_norm", "alone"}


def tried(call):
    """What comes of a call, which may be its error."""
    try:
        return call()
    except (NeedsRows, ValueError) as error:
        return error


@pytest.mark.parametrize("name", names("aggregator"))
def test_a_rule_gives_the_same_or_says_that_it_needs_rows(shards, tmp_path, name):
    rows, rule = updates_of(2), make("aggregator", name)
    cohort, _ = taken(shards, rows)
    expected, found = (tried(lambda c=c: rule.step(rule.init(), c, np.ones(N))[1]) for c in (plain(rows), cohort))
    if isinstance(found, Exception):
        assert name not in RULES
        assert isinstance(found, NeedsRows) or str(found) == str(expected)  # one that needs a server has the same words
    else:
        assert_near(written(shards, found.update, tmp_path), expected.update)


@pytest.mark.parametrize("name", names("signal"))
def test_a_signal_gives_the_same_or_says_that_it_needs_rows(shards, name):
    rows, measure = updates_of(2), make("signal", name)
    cohort, _ = taken(shards, rows)
    expected, found = (tried(lambda c=c: measure(c)) for c in (plain(rows), cohort))
    if isinstance(found, Exception):
        assert name not in SIGNALS
        assert isinstance(found, NeedsRows) or str(found) == str(expected)
    else:
        found, expected = (getattr(values, "values", values) for values in (found, expected))
        assert np.allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_signal_that_runs_models_fails_with_words_rather_than_wrongly(shards):
    model, probe = torch.nn.Linear(4000, 1), torch.zeros(3, 4000)
    server = fw.Server(model=model, probe=probe, labels=torch.zeros(3, dtype=torch.long))
    warden = fw.Warden.preset("auto").equip(server)
    cohort, rejected = taken(shards, updates_of(0))
    with pytest.raises(NeedsRows, match="only the workers of the shards hold"):
        warden.step(replace(cohort, params=torch.zeros(D)), rejected)


@pytest.fixture(scope="module")
def wider(running):
    with Shards(5 * D, WORKERS) as found:
        yield found


@pytest.mark.parametrize(("options", "sampled"), [({}, 4 << 21)])
def test_only_numbers_of_clients_are_on_the_wire(shards, wider, tmp_path, options, sampled):
    found = []
    for some in (shards, wider):
        cohort, rejected = taken(some, saved(updates_of(0, some.d), tmp_path))
        some.wire.clear()
        written(some, fw.Warden.preset("auto", **options).step(cohort, rejected).update, tmp_path)
        assert some.wire["handed over"] == 0
        found.append(some.wire["received"])
    matrix, surveys, done = 8 * (N + 1) ** 2, 3 * 8 * N, 8
    least = WORKERS * (matrix + surveys + done)
    if sampled:
        assert least < min(found) <= max(found) <= least + sampled
    else:
        assert found == [least, least], "the same for five times the parameters"
