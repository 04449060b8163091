"""Recipes of public data sets: download with checksums, conversion to the layout that training scripts read."""
