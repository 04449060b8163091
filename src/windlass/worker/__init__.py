"""The process that each node starts: standard library only, under the script's own interpreter (Python 3.9+)."""
