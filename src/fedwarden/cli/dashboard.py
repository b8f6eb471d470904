"""``fedwarden dashboard``: the workspace in a browser."""

from __future__ import annotations

import os
import webbrowser
from typing import Annotated

import typer

from .. import dashboard as room
from ..store.ledger import home as default_home
from .common import LOG, Home, Imports, bring

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def dashboard(
    home: Home = None,
    host: Annotated[
        str, typer.Option(help="The address to serve from; another than this machine's own needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8050,
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", help="A name of the proxy in front to answer to; may be repeated.", metavar="NAME"
        ),
    ] = None,
    prefix: Annotated[
        str, typer.Option(help="The path before all pages where a proxy serves them, as in /fedwarden.")
    ] = "",
    proxied: Annotated[
        bool, typer.Option("--behind-proxy", help="Trust X-Forwarded-Host, -Proto and -For: only behind a proxy.")
    ] = False,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser.")] = False,
    page: Annotated[str, typer.Option(help="The page to open, as in /run/2.")] = "/",
    imports: Imports = None,
) -> None:
    """Runs, clients, what-ifs and audits of the workspace, live and read-only; Ctrl-C ends it.

    Served to this machine alone. With `--host 0.0.0.0` others can reach it too: then every request needs an access
    token, which is FEDWARDEN_TOKEN or made at random, and printed once as part of the address. The connection is not
    encrypted: across an untrusted network use `ssh -L 8050:127.0.0.1:8050 HOST` or a proxy with TLS.
    """
    access = room.security.Access(tuple(hosts or ()), prefix, proxied, os.environ.get("FEDWARDEN_TOKEN"))

    def ready(address: str) -> None:
        print(f"fedwarden dashboard: {address}", flush=True)
        LOG.info("Ctrl-C ends it.")
        if open_:
            base, _, query = address.partition("?")
            webbrowser.open(f"{base}{page.lstrip('/')}" + (f"{'&' if '?' in page else '?'}{query}" if query else ""))

    bring(imports)
    room.server.serve(home or default_home(), host, port, access, ready)
