"""The command line: one file a command group, loaded only when called."""
