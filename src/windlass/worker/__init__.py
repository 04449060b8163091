"""The process that each node starts. Standard library only: it runs under the script's own Python, 3.9 or later."""
