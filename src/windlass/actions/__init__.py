"""Implements the operations of the command line and the Python API: one function per command."""
