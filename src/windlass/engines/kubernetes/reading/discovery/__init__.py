"""Finds runs in a cluster by their objects, whichever machine started them."""
