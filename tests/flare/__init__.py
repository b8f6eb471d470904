"""Tests of `fedwarden.nvflare`; a folder of that name would stand before the package of that name on the path."""
