"""Tests of the Flower integration; a package, since they share a grid."""
