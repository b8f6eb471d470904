"""The frame of the papers: names, what is run, and pages that cannot differ from their tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedwarden.core.errors import ConfigError
from fedwarden_research import reproduce
from fedwarden_research.papers.item import Item, Paper, wanted
from fedwarden_research.papers.page import LONG, contents, page, write, write_page
from fedwarden_research.studies.tables import Sheet

PAPERS = {name: reproduce.paper_of(name) for name in reproduce.PAPERS}
RESULTS = Path(__file__).parents[2] / "docs" / "results"


def cells(seeds, device):
    return [({"data": d, "seed": s}, {"device": device}) for d in ("its", "femnist", "huge") for s in seeds]


def sheets(found):
    rows = [[r["cell"]["data"], str(r["result"]["rounds"]), "5"] for r in found]
    return [Sheet("rounds", "Rounds to 90 %", (["data", "ours", "the paper"], rows))]


def holds(tables):
    rows = tables["rounds"].records()
    return f"{sum(int(row['ours']) <= int(row['the paper']) for row in rows)} of {len(rows)} are as quick."


def draw(found, folder, stem):
    path = folder / f"{stem}.svg"
    path.write_text("<svg/>")
    return [path]


ITEM = Item("figure-2", "Rounds", "it is quick.", cells, sheets, holds, "a minute", pictures=draw, rarely=("huge",))
PAPER = Paper("some-paper", "A paper", "https://example.org", (ITEM,))
FOUND = [{"cell": {"data": d, "seed": 0}, "result": {"rounds": n}} for d, n in (("its", 4), ("femnist", 9))]


def test_names_are_unique_and_every_item_says_what_it_takes():
    for paper in PAPERS.values():
        names = [item.name for item in paper.items]
        assert len(set(names)) == len(names)
        assert all(item.cost and item.claim and item.title for item in paper.items)


@pytest.mark.parametrize("paper", PAPERS.values(), ids=PAPERS)
def test_every_cell_of_an_item_is_a_run_of_its_own(paper):
    studies = {}
    for item in paper.items:
        jobs = paper.jobs(item, 2, "cpu")
        keys = [(job.study, json.dumps(dict(job.cell), sort_keys=True)) for job in jobs]
        assert len(set(keys)) == len(keys) > 0
        for key, job in zip(keys, jobs, strict=True):  # what two items share is the same run
            assert studies.setdefault(key, (job.run, repr(job.table))) == (job.run, repr(job.table))


def test_what_is_run_rarely_is_run_where_it_is_named():
    jobs = PAPER.jobs(ITEM, 2, "cpu")
    assert {job.study for job in jobs} == {f"some-paper-figure-2-{d}" for d in ("its", "femnist", "huge")}
    assert [job.cell["data"] for job in wanted(ITEM, jobs, ())] == ["its", "its", "femnist", "femnist"]
    assert [job.cell["data"] for job in wanted(ITEM, jobs, ["huge"])] == ["huge", "huge"]
    with pytest.raises(ConfigError, match="did you mean 'femnist'"):
        wanted(ITEM, jobs, ["femnits"])


def test_a_page_is_made_from_the_tables_alone(tmp_path):
    assert "Not run yet." in page(PAPER, tmp_path / "some-paper")
    files = write(PAPER, ITEM, FOUND, tmp_path)
    assert [f.name for f in files] == ["figure-2-rounds.csv", "figure-2.svg"]
    assert [e.kind for e in contents(tmp_path / "some-paper")] == ["seeds", "table", "picture"]
    text = write_page(PAPER, tmp_path).read_text()
    assert "## Figure 2: Rounds" in text
    assert "fedwarden reproduce some-paper figure-2 --seeds 1\n" in text
    assert "1 of 2 are as quick." in text
    assert "\n\n[Rounds to 90 %](some-paper/figure-2-rounds.csv)\n\n" in text
    files[0].write_text(files[0].read_text().replace("femnist,9,5", "femnist,5,5"))
    assert "2 of 2 are as quick." in page(PAPER, tmp_path / "some-paper")


def test_a_long_table_is_linked_within_a_line_so_that_the_site_does_not_show_it(tmp_path):
    write(PAPER, ITEM, [FOUND[0]] * (LONG + 1), tmp_path)
    assert f"[Rounds to 90 %](some-paper/figure-2-rounds.csv), {LONG + 1} rows.\n" in page(PAPER, tmp_path / PAPER.name)


@pytest.mark.parametrize("name", [name for name in PAPERS if (RESULTS / f"{name}.md").is_file()])
def test_the_committed_page_is_what_its_tables_make(name):
    made = page(PAPERS[name], RESULTS / name)
    assert (RESULTS / f"{name}.md").read_text() == made, "make it again: fedwarden reproduce PAPER --out docs/results"
