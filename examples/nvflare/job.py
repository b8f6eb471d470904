"""A guarded FedAvg job: ``python job.py`` runs it in the simulator, ``--export --export-dir jobs`` writes it down."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from model import Net
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

from fedwarden.nvflare import GuardedAggregator


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--poisoned", default="site-3", help="the site whose labels are shifted, or none")
    parser.add_argument("--workspace", default="nvflare-workspace", help="where the simulator works")
    args = parser.parse_args()
    torch.manual_seed(0)
    recipe = FedAvgRecipe(
        name="digits",
        model=Net(),
        min_clients=args.sites,
        num_rounds=args.rounds,
        train_script="client.py",
        train_args=f"--sites {args.sites} --poisoned {args.poisoned}",
        aggregator=GuardedAggregator(home=str(Path("fedwarden-runs").absolute())),
    )
    recipe.execute(SimEnv(num_clients=args.sites, workspace_root=args.workspace))


if __name__ == "__main__":
    main()
