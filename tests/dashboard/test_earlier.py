"""Every page's callbacks on ledgers of earlier schemas."""

import gzip
from pathlib import Path

import pytest

LEDGERS = sorted((Path(__file__).parents[1] / "store" / "ledgers").glob("*.gz"))
PATHS = ("/", "/run/1", "/run/2", "/run/1/what-if", "/run/1/audit", "/compare")


@pytest.mark.parametrize("packed", LEDGERS, ids=lambda path: path.name.split(".")[0])
def test_every_page_shows_it_and_writes_nothing(packed, tmp_path, asker):
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    before, ask = path.read_bytes(), asker(tmp_path)
    for address in PATHS:
        asked = ask("version.data", url__pathname=address, url__search="?first=1&second=2")["response"]
        version = asked["version"]["data"]
        known = {"version__data": version, "dark__data": False, "url__pathname": address, "run-address__search": ""}
        for output in ("heatmap.figure", "scores.figure", "learning.figure", "similar.figure", "glance.children"):
            if address.startswith("/run/") and address.count("/") == 2:
                assert ask(output, watch__value="distance", scale__value="limit", find__value="", **known)
    assert path.read_bytes() == before
