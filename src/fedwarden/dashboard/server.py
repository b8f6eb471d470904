"""Serve the dashboard until Ctrl-C."""

from __future__ import annotations

import errno
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer

from ..core.errors import FedwardenError
from .app import create_app
from .security import LARGEST, LOCAL, Access, is_loopback

THREADS = 8
MOST = 200  # connections at a time, well below the files that a process may have open
IDLE = 30  # seconds that a connection may be silent
SLOW = 20.0  # seconds that a request may take to arrive


class Channel(HTTPChannel):  # type: ignore[misc]
    """A connection that knows since when it waits for the end of a request."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.since = self.creation_time

    def received(self, data: bytes) -> Any:
        if self.request is None:
            self.since = time.time()
        return super().received(data)


class Server(TcpWSGIServer):  # type: ignore[misc]
    """Closes connections that take too long, and the one that waits longest where there are too many.

    Waitress itself closes those that are silent, which one byte a second avoids, and stops to accept at its limit.
    """

    channel_class = Channel

    def handle_accept(self) -> None:
        super().handle_accept()
        waiting = [c for c in self.active_channels.values() if not c.requests]
        if len(self.active_channels) > MOST and waiting:
            min(waiting, key=lambda c: c.since).handle_close()

    def maintenance(self, now: float) -> None:
        super().maintenance(now)
        for channel in self.active_channels.values():
            if channel.request is not None and not channel.requests and now - channel.since > SLOW:
                channel.will_close = True


def serve(folder: Path, host: str, port: int, access: Access, ready: Callable[[str], None]) -> None:
    """Serve a workspace until Ctrl-C; ``ready`` gets the address to open, with the token where there is one."""
    server, where = prepare(folder, host, port, access)
    try:
        ready(where)
        server.run()
    finally:
        server.close()


def prepare(folder: Path, host: str, port: int, access: Access = LOCAL) -> tuple[Any, str]:
    """A server that listens but does not answer yet, and the address to open."""
    if not is_loopback(host):
        access = replace(access, token=access.token or secrets.token_urlsafe(32))
    listener = listen(host, port)
    options = Adjustments(
        sockets=[listener], threads=THREADS, ident="", connection_limit=2 * MOST, channel_timeout=IDLE,
        cleanup_interval=1, asyncore_use_poll=True, max_request_body_size=LARGEST, url_prefix=access.prefix,
    )  # fmt: skip
    place = (listener.family, listener.type, listener.proto, listener.getsockname())
    app = create_app(folder, access).server
    server = Server(app, _sock=listener, bind_socket=False, sockinfo=place, adj=options)
    return server, address(host, listener.getsockname()[1], access)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise FedwardenError(f"there is no address {host!r} to serve from; try --host 127.0.0.1") from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
        made.listen(128)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise FedwardenError(f"port {port} of {host} is in use; choose another, or any with --port 0") from error
        raise FedwardenError(f"cannot serve from {host} port {port}: {error.strerror}; try --port 0") from error
    return made


def address(host: str, port: int, access: Access = LOCAL) -> str:
    """What to open in a browser; of all interfaces, this machine's name.

    >>> address("127.0.0.1", 8050), address("::1", 8050), address("10.0.0.7", 80, Access(token="secret"))
    ('http://127.0.0.1:8050/', 'http://[::1]:8050/', 'http://10.0.0.7:80/?token=secret')
    """
    name = socket.gethostname() if host in ("", "0.0.0.0", "::") else host
    query = f"?token={quote(access.token)}" if access.token else ""
    return f"http://{f'[{name}]' if ':' in name else name}:{port}{access.prefix}/{query}"
