"""Who is let in, what a browser may do, and that no request gets a trace or a file."""

import base64
import hashlib
import json
import re

import pytest

from fedwarden.core.errors import FedwardenError
from fedwarden.dashboard.app import create_app
from fedwarden.dashboard.security import LARGEST, Access

TOKEN = "kT3_secret-of-this-test"
PLACES = ("/", "/run/1", "/run/1/what-if", "/_dash-layout", "/_dash-dependencies", "/assets/style.css")


@pytest.fixture(scope="module")
def server(shared):
    return create_app(shared).server


@pytest.fixture
def client(server):
    return server.test_client()


@pytest.fixture
def guarded(shared):
    return create_app(shared, Access(token=TOKEN)).server.test_client()


@pytest.mark.parametrize(
    "place", [*PLACES, "/healthz", "/nowhere", "/assets/nothing.css", "/_dash-component-suites/os/nothing.js"]
)
def test_every_answer_has_the_headers(client, place):
    headers = client.get(place).headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.search(r"unsafe-eval|https?:|\*", policy)
    assert "unsafe-inline" not in re.search(r"script-src[^;]*", policy)[0]


def test_the_policy_admits_the_one_inline_script_by_its_hash(client):
    page = client.get("/")
    scripts = re.findall(r"<script(?![^>]*(?:src=|application/json))[^>]*>(.*?)</script>", page.text, re.S)
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert len(hashes) == 1
    assert f"'sha256-{hashes[0]}'" in page.headers["Content-Security-Policy"]


def test_everything_a_page_loads_comes_from_this_server(client):
    page = client.get("/").text
    sources = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(sources) > 5
    for source in sources:
        assert re.match(r"/[^/]", source), source
        assert client.get(source).status_code == 200, source
    fixed = next(s for s in sources if "plotly" in s or "dash_core" in s)
    assert client.get(fixed).headers["Cache-Control"].startswith("private, max-age=")


def test_without_a_token_only_loopback_names_are_answered(client):
    ours = ("127.0.0.1:8050", "localhost", "LOCALHOST:1", "[::1]:8050")
    others = ("evil.example", "127.0.0.1.evil.example", "192.168.0.7:8050", "", "[", "127.0.0.1@evil.example")
    for place in PLACES:
        for host in (*ours, *others):
            code = client.get(place, headers={"Host": host}).status_code
            assert code == (200 if host in ours else 403), (place, host)


@pytest.mark.parametrize(
    ("sent", "forwarded", "code"),
    [("fl.example.org", None, 200), ("FL.example.org:443", None, 200), ("127.0.0.1:8050", "fl.example.org", 200),
     ("fl.example.org", "evil.example", 403), ("evil.example", "fl.example.org", 403)],
)  # fmt: skip
def test_the_names_of_a_proxy_are_answered_where_they_are_allowed(shared, sent, forwarded, code):
    access = Access(("fl.example.org",), proxied=True)
    headers = {"Host": sent} | ({"X-Forwarded-Host": forwarded} if forwarded else {})
    assert create_app(shared, access).server.test_client().get("/", headers=headers).status_code == code


@pytest.mark.parametrize("wrong", [{"hosts": ("a b",)}, {"hosts": ("a:80",)}, {"prefix": "fw"}, {"prefix": "/fw/"}])
def test_a_name_or_path_that_cannot_be_is_named(wrong):
    with pytest.raises(FedwardenError, match="takes a"):
        Access(**wrong)


@pytest.mark.parametrize("path", ["/health", "/metric", "/favicon.ico", "/run", "/run/x", "/run/1/nothing", "/fw/"])
def test_an_unknown_path_is_not_found(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert "react-entry-point" in answer.text  # a browser draws the page that says so


def test_a_program_sends_the_token_in_a_header(guarded):
    assert guarded.get("/healthz", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert guarded.get("/healthz", headers={"Authorization": "Bearer x"}).status_code == 403


def test_the_token_becomes_a_cookie_of_a_sub_path_behind_tls(shared):
    client = create_app(shared, Access(prefix="/fw", proxied=True, token=TOKEN)).server.test_client()
    headers = {"X-Forwarded-Proto": "https"}
    answer = client.get(f"/run/1?token={TOKEN}", headers=headers, environ_overrides={"SCRIPT_NAME": "/fw"})
    assert answer.headers["Location"] == "/fw/run/1"
    assert "Secure" in answer.headers["Set-Cookie"]


@pytest.mark.parametrize(
    "given", ["", "?token=", "?token=wrong", f"?token={TOKEN}x", f"?token={TOKEN[:-1]}", "?token=%ff%00ü"]
)
def test_nothing_is_served_without_the_token(guarded, given):
    for place in PLACES:
        answer = guarded.get(place + given, headers={"Host": "anything.example"})
        assert answer.status_code == 403
        assert "token" in answer.text
        assert "Set-Cookie" not in answer.headers
    assert guarded.post("/_dash-update-component" + given, json={}).status_code == 403


def test_the_token_becomes_a_cookie_and_leaves_the_address(guarded):
    answer = guarded.get(f"/run/1?client=h&token={TOKEN}&watch=far")
    assert answer.status_code == 303
    assert answer.headers["Location"] == "/run/1?client=h&watch=far"
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    for place in PLACES:
        assert guarded.get(place).status_code == 200
    guarded.set_cookie(cookie.split("=")[0], "wrong")
    assert guarded.get("/").status_code == 403


@pytest.mark.parametrize(("path", "there"), [("//evil.example/", "/evil.example/"), ("/\\evil", "/%5Cevil")])
def test_the_token_sends_nobody_elsewhere(guarded, path, there):
    answer = guarded.get(f"/?token={TOKEN}", environ_overrides={"PATH_INFO": path})
    assert answer.headers["Location"] == there


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"{}", b"null", b"7", b'"x"', b"\xff\xfe", b'{"output": "nothing.here"}',
     b'{"output": "version.data", "inputs": {}}', b'{"output": "..a.b...c.d..", "outputs": [], "inputs": [{}]}',
     json.dumps({"output": "page.children", "outputs": {"id": "page", "property": "children"},
                 "inputs": [{"id": "url", "property": "pathname", "value": {"a": [1]}}],
                 "state": [{"id": "url", "property": "search", "value": 7}], "changedPropIds": ["x" * 999]}).encode()],
)  # fmt: skip
def test_malformed_requests_get_no_trace(client, body):
    for kind in ("application/json", "text/plain"):
        answer = client.post("/_dash-update-component", data=body, content_type=kind)
        assert answer.status_code < 500, answer.text
        assert not re.search(r"Traceback|File \"|fedwarden/|site-packages", answer.text)


def test_a_request_is_no_larger_than_pages_need(client):
    answer = client.post("/_dash-update-component", data=b"x" * (LARGEST + 1), content_type="application/json")
    assert answer.status_code == 413


def test_nothing_else_is_done(client):
    for method in ("put", "delete", "patch"):
        for place in PLACES:
            assert getattr(client, method)(place).status_code == 405


@pytest.mark.parametrize(
    "path",
    ["/assets/../state.py", "/assets/%2e%2e/state.py", "/assets/..%2fstate.py", "/assets/....//state.py",
     "/assets//etc/passwd", "/assets/style.css/../../state.py", "/assets/", "/assets/style.css%00.js",
     "/_dash-component-suites/dash/../../../state.py", "/_dash-component-suites/os/os.py",
     "/_dash-component-suites/dash/dash.py", "/_dash-component-suites/fedwarden.dashboard/state.py"],
)  # fmt: skip
def test_no_path_reaches_the_file_system(client, path):
    answer = client.get(path)
    assert answer.status_code in (400, 404)
    assert "Workspace" not in answer.text
    assert "root:" not in answer.text


def test_a_path_in_the_place_of_a_run_is_a_page_that_is_not_there(client, shared, asker):
    ask = asker(shared)
    for path in ("/run/../../etc/passwd", "/run/1/../2", "/run/-1", "/run/1e3", "/run/٣", f"/run/{9**20}", "/run/%31"):
        shown = json.dumps(ask("page.children", url__pathname=path))
        assert "There is no such page" in shown, path
