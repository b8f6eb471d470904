"""Serve the dashboard until Ctrl-C."""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from waitress import create_server

from ..core.errors import FedwardenError
from .app import create_app
from .security import is_loopback

THREADS = 8


class ServerError(FedwardenError):
    """An address that cannot be served from."""


def serve(folder: Path, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve a workspace until Ctrl-C; ``ready`` gets the address to open, with the token where there is one."""
    server, where = prepare(folder, host, port)
    try:
        ready(where)
        server.run()
    finally:
        server.close()


def prepare(folder: Path, host: str, port: int) -> tuple[Any, str]:
    """A server that listens but does not answer yet, and the address to open."""
    token = None if is_loopback(host) else secrets.token_urlsafe(32)
    listener = listen(host, port)
    server = create_server(create_app(folder, token).server, sockets=[listener], threads=THREADS, ident="")
    return server, address(host, listener.getsockname()[1], token)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ServerError(f"there is no address {host!r} to serve from; try --host 127.0.0.1") from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
        made.listen(128)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise ServerError(f"port {port} of {host} is in use; choose another with --port, or 0 for any") from error
        raise ServerError(f"cannot serve from {host} port {port}: {error.strerror}; try --port 0") from error
    return made


def address(host: str, port: int, token: str | None = None) -> str:
    """What to open in a browser; of all interfaces, this machine's name.

    >>> address("127.0.0.1", 8050), address("::1", 8050), address("10.0.0.7", 80, "secret")
    ('http://127.0.0.1:8050/', 'http://[::1]:8050/', 'http://10.0.0.7:80/?token=secret')
    """
    name = socket.gethostname() if host in ("", "0.0.0.0", "::") else host
    query = f"?token={quote(token)}" if token else ""
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/{query}"
