"""The data sets, and which client holds which rows of them."""
