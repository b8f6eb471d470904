"""The command ``reproduce``: what there is, and tables of what is kept."""

import json

from fedwarden.studies.runner import results_file
from fedwarden_research.reproduce import PAPERS, paper_of


def test_the_list_has_every_item_and_what_it_takes(call_json):
    found = call_json("reproduce", "--list")
    assert {paper: list(items) for paper, items in found.items()} == {
        name: [item.name for item in paper_of(name).items] for name in PAPERS
    }
    assert found["pid-made"]["figure-2"]["data"] == ["its", "pneumonia", "femnist"]
    assert "2 cores" in found["pid-made"]["figure-2"]["cost"]


def test_the_list_of_one_paper(call):
    code, out, _ = call("reproduce", "pid-made", "--list")
    assert code == 0
    assert "table-4" in out
    assert "sensitivity" not in out


def test_tables_of_what_is_kept_are_made_without_running_anything(call_json, workspace):
    path = results_file(workspace, "pid-made-figure-11-pneumonia")
    path.parent.mkdir(parents=True)
    counts = [[220, 700], [250, 690]]
    path.write_text(json.dumps({"cell": {"data": "pneumonia", "seed": 0}, "result": {"counts": counts}}) + "\n")
    found = call_json("reproduce", "pid-made", "figure-11", "figure-10", "--no-run")
    first, second = found["items"]
    assert (first["item"], first["runs"], second["runs"], second["holds"]) == ("figure-11", 1, 0, None)
    assert first["tables"]["counts"][1] == {
        "class": "1",
        "least": "690",
        "mean": "695.0",
        "most": "700",
        "clients": "2",
    }
    assert "220 to 250 samples of the first class and 690 to 700 of the second" in first["holds"]
