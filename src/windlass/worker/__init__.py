"""The process that runs the ranks of a node. Standard library only, because it runs under the script's Python, 3.9 or
later.
"""
