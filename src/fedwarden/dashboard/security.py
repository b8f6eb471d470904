"""Which requests are answered, and what a browser may do with the answer.

Without a token the dashboard serves this machine alone: a request must name it by a loopback name or one that the
operator allows, or a page of another site could reach it by a name of its own (DNS rebinding). With a token every
request carries it: first in the address and from then on in a cookie, or in a header as programs do.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from dash.exceptions import DependencyException
from flask import Flask, Response, redirect, request
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import HTTPException
from werkzeug.middleware.proxy_fix import ProxyFix

from ..core.errors import FedwardenError
from .routes import read

HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(?::[0-9]+)?", re.ASCII)
PREFIX = re.compile(r"(/[\w.~-]+)+", re.ASCII)
LARGEST = 256 * 1024  # bytes of a request; the pages send a few hundred
LINE = 200  # characters of a message in the log
FOREVER = 31536000
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
POLICY = (  # what a page may load: our scripts and the inline one by its hash; Plotly and Dash write inline styles
    "default-src 'none'; script-src 'self' {}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src "
    "'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REFUSED = (
    "This dashboard needs its access token: open the address that `fedwarden dashboard` printed when it started.\n"
)
ELSEWHERE = (
    "This dashboard answers to 127.0.0.1, localhost and the names that `fedwarden dashboard --allow-host NAME` allows; "
    "open it by one of these.\n"
)
MISSING = "There is no such file.\n"
BROKEN = "This request could not be answered; the terminal of the dashboard says why.\n"


@dataclass(frozen=True)
class Access:
    """Where a dashboard answers, and to whom: names beside those of this machine, a token, a path before all pages.

    ``proxied`` trusts what the proxy before it says of the browser's request.
    """

    hosts: tuple[str, ...] = ()
    prefix: str = ""
    proxied: bool = False
    token: str | None = None

    def __post_init__(self) -> None:
        for host in self.hosts:
            if (found := HOST.fullmatch(host)) is None or found[1] != host:
                raise FedwardenError(
                    f"--allow-host takes a name without port or path, as in fl.example.org; got {host!r}"
                )
        if self.prefix and not PREFIX.fullmatch(self.prefix):
            raise FedwardenError(
                f"--prefix takes a path without a slash at its end, as in /fedwarden; got {self.prefix!r}"
            )

    def admits(self, host: str) -> bool:
        """Whether a request may ask for this host, with or without a port."""
        named = HOST.fullmatch(host)
        return named is not None and (is_loopback(named[1]) or named[1].lower() in map(str.lower, self.hosts))


LOCAL = Access()


def is_loopback(host: str) -> bool:
    """Whether a name is this machine's own.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("[::1]"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def protect(server: Flask, access: Access, script_hashes: Sequence[str], assets: Collection[str]) -> None:
    """Put the checks before every request and the headers behind every answer."""
    policy = POLICY.format(" ".join(script_hashes))
    server.config["MAX_CONTENT_LENGTH"] = LARGEST
    if access.proxied:
        server.wsgi_app = ProxyFix(server.wsgi_app, x_host=1)  # type: ignore[method-assign]

    @server.before_request
    def admit() -> Response | tuple[str, int] | None:
        if request.path.startswith("/assets/") and request.path.removeprefix("/assets/") not in assets:
            return MISSING, 404
        return _by_host(access) if access.token is None else _by_token(access.token)

    @server.after_request
    def harden(response: Response) -> Response:
        response.headers.update({**HEADERS, "Content-Security-Policy": policy})
        kept = f"private, max-age={FOREVER}, immutable" if response.cache_control.max_age == FOREVER else "no-cache"
        script = request.path.startswith("/_dash-component-suites/") and response.status_code < 400
        response.headers["Cache-Control"] = kept if script else "no-store"
        if response.status_code == 200 and response.mimetype == "text/html" and read(request.path).kind == "nowhere":
            response.status_code = 404
        elif response.status_code >= 400 and response.mimetype == "text/html":
            response.content_type = "text/plain; charset=utf-8"
        return response

    @server.errorhandler(Exception)
    def fail(error: Exception) -> tuple[str, int]:
        if isinstance(error, HTTPException):
            return f"{error.code} {error.name}\n", error.code or 500
        if isinstance(error, DependencyException):  # Dash serves only the scripts that it knows
            return MISSING, 404
        what = " ".join(str(error).split())[:LINE]
        server.logger.error("%s %s: %s: %s", request.method, request.path[:LINE], type(error).__name__, what)
        return BROKEN, 400 if request.path == "/_dash-update-component" else 500


def _by_host(access: Access) -> tuple[str, int] | None:
    """By the name in the request and, behind a proxy, by the one that the browser asked for, which a page can forge."""
    sent = request.environ.get("werkzeug.proxy_fix.orig", request.environ).get("HTTP_HOST") or ""
    return None if access.admits(sent) and access.admits(request.headers.get("Host", "")) else (ELSEWHERE, 403)


def _by_token(token: str) -> Response | tuple[str, int] | None:
    """Admit a cookie; change a token in the address for the cookie, so that it stays in no history."""
    cookie = f"fedwarden-{hashlib.sha256(token.encode()).hexdigest()[:8]}"  # two dashboards on one host share cookies
    header = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if _same(request.cookies.get(cookie, ""), token) or _same(header, token):
        return None
    if not _same(request.args.get("token", ""), token):
        return REFUSED, 403
    rest = MultiDict((k, v) for k, v in request.args.items(multi=True) if k != "token")
    query = urlencode(list(rest.items(multi=True)))
    answer = redirect(f"{request.script_root}/{quote(request.path.lstrip('/'))}" + (f"?{query}" if query else ""), 303)
    answer.set_cookie(cookie, token, httponly=True, samesite="Strict", secure=request.is_secure)
    return answer  # type: ignore[return-value]


def _same(given: str, token: str) -> bool:
    """In constant time, whatever was given."""
    return hmac.compare_digest(given.encode(), token.encode())
