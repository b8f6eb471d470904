"""export and report: files for other programs and for other people."""

import json
import sys

import pytest

from fedwarden.store.record import RunRecord


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("to", ["csv", "json", "parquet"])
def test_a_file_with_a_name_of_its_own_that_is_not_replaced(call, recorded, here, to):
    args = ("export", "1", "--to", to, "--home", recorded)
    code, out, err = call(*args)
    assert (code, out) == (0, "")
    assert f"wrote run-1.{to}" in err
    before = (here / f"run-1.{to}").read_bytes()
    (here / f"run-1.{to}").write_bytes(b"mine")
    code, _, err = call(*args)
    assert code == 2
    assert "--force" in err
    assert (here / f"run-1.{to}").read_bytes() == b"mine"
    assert call(*args, "--force")[0] == 0
    assert (here / f"run-1.{to}").read_bytes() == before


def test_parquet_is_no_text(call, recorded):
    code, _, err = call("export", "1", "--to", "parquet", "-o", "-", "--home", recorded)
    assert code == 2
    assert "--to csv" in err


def test_the_ending_of_the_file_says_what_is_written(call, recorded, tmp_path):
    assert call("export", "1", "-o", tmp_path / "run.json", "--home", recorded)[0] == 0
    assert json.loads((tmp_path / "run.json").read_text())["config"] == RunRecord.open(1, recorded).run.config
    for args in (("export", "1", "-o", tmp_path / "run.xls"), ("report", "1", "-o", tmp_path / "run.pdf")):
        code, _, err = call(*args, "--home", recorded)
        assert code == 2
        assert err.count("\n") == 1
        assert "--to" in err or ".html" in err
        assert not args[-1].exists()


@pytest.mark.parametrize(
    "args", [("export", "1", "--to", "xml"), ("export", "99"), ("report", "99"), ("report", "1", "-o", ".")]
)
def test_what_cannot_be_done_is_said(call, recorded, here, args):
    code, _, err = call(*args, "--home", recorded)
    assert code == 2
    assert err.startswith("error: ")
    assert "Traceback" not in err


def test_a_report_says_where_it_is_and_what_it_says(call, call_json, recorded, here):
    code, out, _ = call("report", "1", "--home", recorded)
    assert code == 0
    assert "Run 1 (tiny)" in out
    assert "wrote report-1.html" in out
    text = (here / "report-1.html").read_text(encoding="utf-8")
    assert "Run 1 (tiny)" in text
    assert "label_flip" in text
    assert call("report", "1", "--home", recorded)[0] == 2
    told = call_json("report", "1", "-o", "two.html", "--home", recorded)
    assert told["file"] == str(here / "two.html")
    assert told["summary"][0].startswith("Run 1 (tiny)")


def test_without_plotly_one_line_says_what_to_install(call, recorded, here, monkeypatch):
    for name in [
        n for n in sys.modules if n.split(".")[0] == "plotly" or n.startswith(("fedwarden.figures", "fedwarden.report"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "fedwarden.cli.report", raising=False)
    monkeypatch.delattr("fedwarden.report.html", raising=False)  # where a test before has imported it
    monkeypatch.setitem(sys.modules, "plotly", None)
    code, out, err = call("report", "1", "--home", recorded)
    assert (code, out) == (2, "")
    assert "pip install 'fedwarden[dashboard]'" in err
    assert err.count("\n") == 1
    assert call("export", "1", "--home", recorded)[0] == 0  # needs nothing more
