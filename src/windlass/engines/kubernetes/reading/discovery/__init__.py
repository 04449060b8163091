"""Runs found in a cluster by their objects, whichever machine started them."""
