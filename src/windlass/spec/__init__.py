"""Job files, targets files and command lines as validated, immutable values. Does no file or network access.

`job` and `targets` define the values, `parse` reads them from YAML, `commandline` from a command line, `dump` writes
YAML, and `schema` describes the fields. Import the module you need: this package stays empty so that start-up is fast.
"""
