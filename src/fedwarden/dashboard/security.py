"""Who may ask, and what a browser may do with the answer.

Without a token the dashboard serves this machine alone: a request must name it by a loopback name, or a page of another
site could reach it by a name of its own (DNS rebinding). With a token every request carries it, first in the address
and from then on in a cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Collection, Sequence
from urllib.parse import quote, urlencode

from dash.exceptions import DependencyException
from flask import Flask, Response, redirect, request
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import HTTPException

HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(?::[0-9]+)?", re.ASCII)
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
REFUSED = (
    "This dashboard needs its access token: open the address that `fedwarden dashboard` printed when it started.\n"
)
ELSEWHERE = "This dashboard answers to 127.0.0.1 and localhost only; open it by one of these names.\n"
MISSING = "There is no such file.\n"
BROKEN = "This request could not be answered; the terminal of the dashboard says why.\n"


def is_loopback(host: str) -> bool:
    """Whether a name is this machine's own.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("[::1]"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def content_policy(script_hashes: Sequence[str]) -> str:
    """What a page may load: scripts of ours and those inline ones whose hash is known, nothing from elsewhere.

    Inline styles stay allowed, because Plotly and Dash write them; scripts made from text do not.
    """
    return "; ".join(
        (
            "default-src 'none'",
            " ".join(("script-src 'self'", *script_hashes)),
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def protect(server: Flask, token: str | None, script_hashes: Sequence[str], assets: Collection[str]) -> None:
    """Put the checks before every request and the headers behind every answer."""
    policy = content_policy(script_hashes)
    server.config["MAX_CONTENT_LENGTH"] = LARGEST

    @server.before_request
    def admit() -> Response | tuple[str, int] | None:
        if request.path.startswith("/assets/") and request.path.removeprefix("/assets/") not in assets:
            return MISSING, 404
        return _by_host() if token is None else _by_token(token)

    @server.after_request
    def harden(response: Response) -> Response:
        response.headers.update({**HEADERS, "Content-Security-Policy": policy})
        fixed = request.path.startswith("/_dash-component-suites/") and response.cache_control.max_age == FOREVER
        response.headers["Cache-Control"] = f"private, max-age={FOREVER}, immutable" if fixed else "no-store"
        if response.status_code >= 400:
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


def _by_host() -> tuple[str, int] | None:
    named = HOST.fullmatch(request.headers.get("Host", ""))
    return None if named and is_loopback(named[1]) else (ELSEWHERE, 403)


def _by_token(token: str) -> Response | tuple[str, int] | None:
    """Admit a cookie; change a token in the address for the cookie, so that it stays in no history."""
    cookie = f"fedwarden-{hashlib.sha256(token.encode()).hexdigest()[:8]}"  # two dashboards on one host share cookies
    if _same(request.cookies.get(cookie, ""), token):
        return None
    if not _same(request.args.get("token", ""), token):
        return REFUSED, 403
    rest = MultiDict((k, v) for k, v in request.args.items(multi=True) if k != "token")
    query = urlencode(list(rest.items(multi=True)))
    answer = redirect("/" + quote(request.path.lstrip("/")) + (f"?{query}" if query else ""), 303)
    answer.set_cookie(cookie, token, httponly=True, samesite="Strict")
    return answer  # type: ignore[return-value]


def _same(given: str, token: str) -> bool:
    """In constant time, whatever was given."""
    return hmac.compare_digest(given.encode(), token.encode())
