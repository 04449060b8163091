"""Brings code to where ranks run: `pack` makes one archive of a folder, the same bytes for the same files."""
