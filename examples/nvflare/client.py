"""A site: it trains what the server sends. One of them has its labels shifted; nobody tells the server which."""

from __future__ import annotations

import argparse

import nvflare.client as flare
import torch
from model import Net, load_site
from torch.nn.functional import cross_entropy

STEPS = 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", type=int, required=True)
    parser.add_argument("--poisoned", default="")
    args = parser.parse_args()
    flare.init()
    site = flare.get_site_name()
    x, y = load_site(int(site.removeprefix("site-")) - 1, args.sites)
    labels = (y + 1) % 10 if site == args.poisoned else y
    net = Net()
    while flare.is_running():
        received = flare.receive()
        net.load_state_dict({name: torch.as_tensor(value) for name, value in received.params.items()})
        with torch.no_grad():
            accuracy = float((net(x).argmax(dim=1) == labels).float().mean())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        for _ in range(STEPS):
            optimizer.zero_grad()
            cross_entropy(net(x), labels).backward()
            optimizer.step()
        flare.send(
            flare.FLModel(
                params=net.state_dict(),
                metrics={"accuracy": accuracy},
                meta={"NUM_STEPS_CURRENT_ROUND": STEPS},
            )
        )


if __name__ == "__main__":
    main()
