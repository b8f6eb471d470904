"""The pages in a real browser: every one of them, what is chosen on them, and a run that writes meanwhile."""

import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from threading import Thread

import numpy as np
import pytest

pytest.importorskip("selenium", reason="selenium is not installed")

from screenshot import screenshot
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

import fedwarden as fw
from fedwarden.core.types import Observation
from fedwarden.dashboard.layout import TICK
from fedwarden.dashboard.server import prepare
from fedwarden.store.ledger import Ledger, LedgerError
from fedwarden.store.recorder import Recorder

pytestmark = pytest.mark.slow

PATIENCE = 60
DRAWN = """
const plot = document.querySelector(`#${arguments[0]} .js-plotly-plot`);
return Boolean(plot && plot.data && plot.data.length && plot.querySelector(".main-svg"));
"""
LIVE = """
name = "live"
rounds = 60
[data]
dataset = "digits"
clients = 8
[model]
name = "mlp"
[train]
workers = 1
epochs = 5
[[attacks]]
name = "label_flip"
count = 1
"""
SUMMARY = "return document.getElementById('summary').innerText"
FITS = "return document.documentElement.scrollWidth <= window.innerWidth"
CLICK = """
const plot = document.querySelector("#heatmap .js-plotly-plot"), { xaxis, yaxis } = plot._fullLayout;
plot.scrollIntoView({ block: "center" });
const { left, top } = plot.getBoundingClientRect();
return [left + xaxis._offset + xaxis.c2p(arguments[0]), top + yaxis._offset + yaxis.c2p(arguments[1])].map(Math.round);
"""


@pytest.fixture
def site(browser):
    """Serve a workspace and open its pages: ``site(folder)`` gives a function that opens one.

    Callbacks are answered after ``delay`` seconds.
    """
    servers = []

    def serve(folder, delay=0.0):
        server, where = prepare(folder, "127.0.0.1", 0)
        answer = server.application

        def later(environ, respond):
            time.sleep(delay * ("_dash-update-component" in environ["PATH_INFO"]))
            return answer(environ, respond)

        server.application = later
        Thread(target=server.run, daemon=True).start()
        servers.append(server)
        return lambda page: browser.get(where.rstrip("/") + page)

    yield serve
    browser.get("about:blank")
    for server in servers:
        server.close()


@pytest.fixture
def until(browser):
    """Wait for a condition, a text on the page, or a figure."""

    def wait(condition=None, *, says=None, drawn=None):
        def holds(driver):
            if says is not None:
                return says in driver.find_element(By.ID, "page").text
            return driver.execute_script(DRAWN, drawn) if drawn is not None else condition(driver)

        return WebDriverWait(browser, PATIENCE, 0.05).until(holds, f"{says or drawn or condition}: {page(browser)}")

    return wait


def page(driver):
    return driver.find_element(By.TAG_NAME, "body").text[:600]


def choose(browser, until, field, text):
    """Choose an entry of a dropdown as a person does."""
    browser.find_element(By.CSS_SELECTOR, f"[aria-label='{field}'] .dash-dropdown").click()
    option = f"//*[contains(@class, 'dash-dropdown-option')][normalize-space()='{text}']"
    until(lambda d: d.find_elements(By.XPATH, option))[0].click()


def test_the_runs_are_listed_filtered_and_compared(site, browser, until, shared):
    site(shared)("/")
    until(says="guarded")
    rows = [r.text for r in browser.find_elements(By.CSS_SELECTOR, "#runs tbody tr")]
    assert rows[0].startswith("2 plain interrupted")
    assert rows[1].startswith("1 guarded done 6 of 6 flower - 60.0 % h")
    assert browser.title == "Runs · fedwarden"
    browser.find_element(By.ID, "filter").send_keys("guard")
    until(lambda d: len(d.find_elements(By.CSS_SELECTOR, "#runs tbody tr")) == 1)
    browser.find_element(By.ID, "filter").send_keys(Keys.BACKSPACE * 5)
    until(lambda d: len(d.find_elements(By.CSS_SELECTOR, "#runs tbody tr")) == 2)
    for box in browser.find_elements(By.CSS_SELECTOR, "#runs input[type=checkbox]"):
        box.click()
    until(says="Compare runs 1 and 2")
    browser.find_element(By.LINK_TEXT, "Compare runs 1 and 2").click()
    until(drawn="both")
    until(says="verdict")
    assert browser.current_url.endswith("/compare?first=1&second=2")
    assert "guarded" in browser.find_element(By.ID, "first").text
    choose(browser, until, "First run", "2 plain")
    until(lambda d: d.current_url.endswith("/compare?first=2&second=2"))
    until(lambda d: d.find_element(By.ID, "facts").text.count("plain") == 2)


def test_a_run_from_the_summary_to_one_client_and_back(site, browser, until, shared):
    site(shared)("/run/1")
    for figure in ("heatmap", "learning", "scores"):
        until(drawn=figure)
    until(says="1 of 8 clients is excluded: h since round 2")
    first = until(lambda d: d.find_elements(By.CSS_SELECTOR, "#glance tbody tr"))[0]
    assert first.text.startswith("h excluded since round 2 0")
    assert [i.is_displayed() for i in browser.find_elements(By.CSS_SELECTOR, "#glance tbody tr:nth-child(2) img")]
    browser.find_element(By.LINK_TEXT, "h").click()
    until(says="Client h was excluded in round 2:")
    until(drawn="client")
    assert browser.current_url.endswith("/run/1/client?name=h")
    assert "Layers in round 2" in browser.find_element(By.ID, "client").text
    until(lambda d: d.title == "Run 1 guarded, client h · fedwarden")
    browser.back()
    until(says="Clients at a glance")
    browser.get(browser.current_url + "/client?name=nobody")
    until(says="No client “nobody” has taken part")


def test_a_run_that_failed_one_that_only_audits_and_one_without_a_guard(site, browser, until, home):
    with Ledger(home) as ledger:
        audit = ledger.start("an audit", "flower", {}, {})
        ledger.observe(audit, [Observation(2, "weights", "cosine", "", 0.5, 0.5, 0.1, 0.9, False)], "7")
        ledger.finish(audit, "done")
    with suppress(RuntimeError), Recorder(home) as recorder:
        recorder.start("broken", "flower", {"rounds": 3})
        raise RuntimeError("out of <b>memory</b>")
    show = site(home)
    panels = ("#glance-part", "#watched", "#scores-part", "#learning-part", "#similar-part")

    def shown(driver):
        return [p for p in panels if driver.find_element(By.CSS_SELECTOR, p).is_displayed()]

    show("/run/3")
    until(says="holds what auditors observed, and no rounds.")
    assert "No round" not in page(browser)
    assert shown(browser) == []
    browser.find_element(By.LINK_TEXT, "What the audit saw by round, and its alarms").click()
    until(drawn="leakage")
    show("/run/4")
    until(says="failed after 0 of 3 rounds (out of <b>memory</b>)")
    assert shown(browser) == []
    show("/run/2")
    until(drawn="learning")
    assert shown(browser) == ["#glance-part", "#learning-part"]
    show("/")
    until(says="out of <b>memory</b>")


def test_copies_are_one_point_of_the_map_and_a_client_tells_of_itself(site, browser, until, tmp_path):
    rng = np.random.default_rng(0)
    warden = fw.Warden([fw.Watch("twins")], "observe")
    names = (*"abcde", "<b>eve</b>")
    with Ledger(tmp_path) as ledger:
        run = ledger.start("copies", "flower", {}, {})
        for t in (1, 2, 3):
            rows = 1 + rng.normal(size=(6, 40))
            rows[5] = rows[0]
            record = warden.step(fw.Cohort(t, names, fw.Updates.of(rows), np.full(6, 5.0))).record
            own = {"train/loss": dict.fromkeys(names, 1 / t)}
            ledger.append(run, replace(record, reported={**record.reported, **own}))
    site(tmp_path)("/run/1")
    until(drawn="similar")
    labels = "return [...document.querySelectorAll('#similar .textpoint text')].map(t => t.textContent)"
    until(lambda d: sorted(d.execute_script(labels)) == ["<b>eve</b> + 1", "b", "c", "d", "e"])
    browser.get(browser.current_url.partition("?")[0] + "/client?name=%3Cb%3Eeve%3C%2Fb%3E")
    until(says="answered in 3 of 3 rounds")
    until(says="What it reports")
    until(lambda d: d.execute_script(DRAWN, "client-card"))


def test_a_click_in_the_heatmap_opens_the_client_and_the_scale_is_in_the_address(site, browser, until, shared):
    site(shared)("/run/1")
    until(drawn="heatmap")

    def click(driver):  # until the page has come to rest, the cell may move away
        x, y = driver.execute_script(CLICK, 4, 2)  # round 5, client c
        moved, left = ("mouseMoved", "none"), "left"
        for (kind, button), off in ((moved, 9), (moved, 0), (("mousePressed", left), 0), (("mouseReleased", left), 0)):
            event = {"type": kind, "x": x + off, "y": y, "button": button, "clickCount": int(button == left)}
            driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)
            time.sleep(0.3)
        return driver.current_url.endswith("/run/1/client?name=c")

    until(click)
    until(says="Client c")
    browser.back()
    until(drawn="heatmap")
    browser.find_element(By.XPATH, "//*[@id='scale']//label[contains(., 'robust z')]").click()
    until(lambda d: d.current_url.endswith("/run/1?scale=robust+z"))
    browser.refresh()
    bar = "return document.querySelector('#heatmap .js-plotly-plot').layout.coloraxis.colorbar.title.text"
    until(drawn="heatmap")
    until(lambda d: "robust z" in d.execute_script(bar))


def test_what_if_another_rule_had_decided(site, browser, until, shared):
    site(shared)("/run/1/what-if")
    until(says="The same decisions.")
    choose(browser, until, "Rule", "k_sigma")
    field = until(lambda d: d.find_elements(By.CSS_SELECTOR, "[aria-label='k'] input"))[0]
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("3")
    until(says="1 of 8 clients are treated differently.")
    until(says="can flag at most")
    until(lambda d: d.current_url.endswith("?rule=k_sigma&rule.k=3"))
    browser.refresh()
    until(says="1 of 8 clients are treated differently.")


def test_an_audit_with_its_alarm_and_pages_without_anything_to_show(site, browser, until, shared):
    show = site(shared)
    show("/run/2/audit")
    until(drawn="leakage")
    assert browser.find_element(By.CSS_SELECTOR, "#alarms tbody tr").text.startswith("5 weights, cosine")
    show("/run/1/audit")
    until(says="No audit has been recorded in this run.")
    show("/run/99")
    until(says="Run 99 does not exist. See all runs.")
    show("/compare")
    until(says="Choose two runs")


def test_a_ledger_in_trouble_is_told_of_and_the_page_recovers(site, browser, until, home, tmp_path):
    show = site(home)
    show("/run/1")
    until(drawn="heatmap")
    shutil.move(home, tmp_path / "away")
    until(says="could not be updated")
    assert "1 of 8 clients is excluded" in page(browser)  # what was read stays
    shutil.move(tmp_path / "away", home)
    until(lambda d: "could not be updated" not in page(d))


def test_a_page_is_drawn_where_an_answer_takes_longer_than_the_pause_between_two_looks(site, browser, until, shared):
    site(shared, delay=1.6 * TICK / 1000)("/")
    until(lambda d: d.find_elements(By.LINK_TEXT, "guarded"))[0].click()
    until(drawn="heatmap")


def test_light_and_dark_by_preference_and_by_choice(site, browser, media, until, shared):
    paper = "return getComputedStyle(document.body).backgroundColor"
    figure = "return document.querySelector('#learning .js-plotly-plot')._fullLayout.paper_bgcolor"
    site(shared)("/run/1")
    until(drawn="learning")
    light = browser.execute_script(paper), browser.execute_script(figure)
    media(dark=True)
    until(lambda d: d.execute_script(paper) != light[0] and d.execute_script(figure) != light[1])
    browser.find_element(By.XPATH, "//*[@id='theme']//label[contains(., 'Light')]").click()
    until(lambda d: (d.execute_script(paper), d.execute_script(figure)) == light)
    browser.refresh()
    until(drawn="learning")
    assert browser.execute_script(paper) == light[0]
    browser.execute_script("localStorage.clear()")


def test_a_narrow_screen(site, browser, until, shared):
    browser.set_window_size(400, 800)
    show = site(shared)
    pages = {"/": None, "/run/1/client?name=h": "client", "/run/1/what-if": None, "/compare?first=1&second=2": "both"}
    for path, figure in pages.items():
        show(path)
        until(lambda d: len(page(d)) > 60)
        if figure:
            until(drawn=figure)
        assert browser.execute_script(FITS), path
    show("/")
    until(says="guarded")
    row = browser.find_elements(By.CSS_SELECTOR, "#runs tbody tr")[1]
    assert row.text.split()[:7] == ["1", "guarded", "done", "60.0", "%", "h", "excluded"]
    box = row.find_element(By.CSS_SELECTOR, "input[type=checkbox]")
    assert box.is_displayed()
    assert box.rect["x"] + box.rect["width"] <= 400
    show("/run/1")
    until(lambda d: d.find_elements(By.CSS_SELECTOR, "#glance tbody tr"))
    picture = browser.find_elements(By.CSS_SELECTOR, "#glance tbody tr:nth-child(2) img")[-1]
    assert picture.rect["x"] + picture.rect["width"] <= 400


def test_everything_that_can_be_operated_has_a_name(site, browser, until, shared):
    show = site(shared)
    for path in ("/", "/run/1/client?name=h", "/run/1/what-if?rule=gesd"):
        show(path)
        until(says="Run")
        tree = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        roles = ("button", "link", "checkbox", "radio", "textbox", "searchbox", "spinbutton", "combobox", "table")
        nameless = [
            n["role"]["value"] for n in tree if n.get("role", {}).get("value") in roles and not n["name"]["value"]
        ]
        assert not nameless, path


def test_a_real_run_is_followed_live(site, browser, until, tmp_path):
    home, toml = tmp_path / "home", tmp_path / "live.toml"
    toml.write_text(LIVE)
    show = site(home)
    show("/run/1")
    until(says="No ledger in")

    def shown(driver):
        return driver.execute_script(SUMMARY).partition(" of 60")[0].split()[-1]

    def committed():
        with suppress(LedgerError), Ledger(home, read_only=True) as ledger:
            return ledger.last_round(1)
        return 0

    seen = [0]
    with subprocess.Popen([sys.executable, "-m", "fedwarden", "run", str(toml), "--home", str(home), "--quiet"]) as run:
        while len(seen) <= 4:  # the run stands still until the page has caught up, however slow the machine
            until(lambda _: committed() > seen[-1])
            run.send_signal(signal.SIGSTOP)
            try:
                until(says="is running")
                until(drawn="heatmap")
                until(lambda d: shown(d) == str(committed()))
                seen.append(committed())
            finally:
                run.send_signal(signal.SIGCONT)
    assert seen[-1] < 60
    until(says="is complete: 60 of 60 rounds")


def test_a_picture_is_taken(chromium, shared, tmp_path):
    for dark in (False, True):
        screenshot(shared, tmp_path / f"{dark}.png", "/run/1/client?name=h", dark)
    light, night = ((tmp_path / f"{dark}.png").read_bytes() for dark in (False, True))
    assert light[:8] == night[:8] == b"\x89PNG\r\n\x1a\n"
    assert light != night
    assert min(len(light), len(night)) > 30_000
