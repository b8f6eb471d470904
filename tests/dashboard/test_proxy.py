"""The dashboard behind a real nginx with TLS, under a path of its own, as docs/dashboard.md shows it."""

import json
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from threading import Thread

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")

from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from fedwarden.dashboard.security import Access
from fedwarden.dashboard.server import prepare

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
CERTIFICATE = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out cert.pem"
CONFIG = """
daemon off; pid nginx.pid; error_log stderr; worker_processes 1;
events {{ worker_connections 64; }}
http {{
  access_log off; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4;
  scgi_temp_path t5; proxy_max_temp_file_size 0;
  proxy_set_header Host $host;
  proxy_set_header X-Forwarded-Host $host;
  proxy_set_header X-Forwarded-Proto $scheme;
  ssl_certificate cert.pem; ssl_certificate_key key.pem;
  server {{ listen 127.0.0.1:{kept} ssl; location /fedwarden/ {{ proxy_pass {dashboard}; }} }}
  server {{ listen 127.0.0.1:{stripped} ssl; location /fedwarden/ {{ proxy_pass {dashboard}/; }} }}
}}
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NGINX is None, reason="needs nginx, as in Debian's package nginx-light"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl"),
]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@pytest.fixture(scope="module", params=["kept", "stripped"])
def site(request, shared, tmp_path_factory):
    """The address of the dashboard behind an nginx that passes the whole path on, or strips the prefix."""
    folder, ports = tmp_path_factory.mktemp("nginx"), {"kept": free_port(), "stripped": free_port()}
    access = Access(("fl.example.org",), "/fedwarden", proxied=True)
    server, where = prepare(shared, "127.0.0.1", 0, access)
    Thread(target=server.run, daemon=True).start()
    subprocess.run(CERTIFICATE.split(), cwd=folder, check=True, capture_output=True)
    (folder / "nginx.conf").write_text(CONFIG.format(**ports, dashboard=where.removesuffix("/fedwarden/")))
    nginx = subprocess.Popen([NGINX, "-p", str(folder), "-c", "nginx.conf"], stderr=subprocess.PIPE)
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", ports[request.param])) == 0:
                    break
            assert nginx.poll() is None, nginx.stderr.read()
            time.sleep(0.1)
        yield f"https://127.0.0.1:{ports[request.param]}/fedwarden"
    finally:
        nginx.terminate()
        nginx.wait(30)
        server.close()


def get(address, host="fl.example.org"):
    unchecked = ssl._create_unverified_context()
    return urllib.request.urlopen(
        urllib.request.Request(address, headers={"Host": host}), timeout=20, context=unchecked
    )


def is_drawn(driver):
    return driver.execute_script("return Boolean(document.querySelector('#heatmap .main-svg'))")


def test_a_program_asks_through_the_proxy(site):
    assert json.load(get(f"{site}/healthz"))["status"] == "ok"
    assert "fedwarden_runs" in get(f"{site}/metrics").read().decode()
    for path, host, code in (("/health", "fl.example.org", 404), ("/", "evil.example", 403)):
        with pytest.raises(urllib.error.HTTPError, match=str(code)):
            get(site + path, host)


def test_the_pages_work_under_the_path(site, chromium):
    chromium.execute_cdp_cmd("Security.setIgnoreCertificateErrors", {"ignore": True})
    try:
        chromium.get("about:blank")
        chromium.get_log("browser")

        def until(condition):
            return WebDriverWait(chromium, 180, 0.1).until(
                condition, chromium.find_element(By.TAG_NAME, "body").text[:600]
            )

        chromium.get(f"{site}/")
        until(lambda d: d.find_elements(By.LINK_TEXT, "guarded"))[0].click()
        until(lambda d: d.current_url == f"{site}/run/1")
        until(is_drawn)
        until(lambda d: d.find_elements(By.LINK_TEXT, "h"))[0].click()
        until(lambda d: d.current_url == f"{site}/run/1/client?name=h")
        until(lambda d: "Client h was excluded in round 2" in d.find_element(By.ID, "page").text)
        chromium.find_element(By.LINK_TEXT, "What if").click()
        until(lambda d: "The same decisions" in d.find_element(By.ID, "page").text)
        chromium.find_element(By.LINK_TEXT, "Runs").click()
        until(lambda d: d.current_url == f"{site}/" and d.find_elements(By.ID, "runs"))
        assert not [entry for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"]
        chromium.get(f"{site}/nothing")
        until(lambda d: "There is no such page" in d.find_element(By.ID, "page").text)
    finally:
        chromium.get("about:blank")
        chromium.get_log("browser")
        chromium.execute_cdp_cmd("Security.setIgnoreCertificateErrors", {"ignore": False})
