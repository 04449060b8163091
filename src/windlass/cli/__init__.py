"""The command line: one module per command or command group, imported only when called."""
