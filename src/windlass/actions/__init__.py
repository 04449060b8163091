"""What the command line and the Python API do: one function for each command."""
