"""Job files, targets files and command lines as validated, immutable values. Does no file or network access.

`job` and `targets` define the values. `parse` reads a job from YAML, `commandline` from a command line. `dump` writes
YAML, and `schema` describes the fields. Import the module you need: this package exports nothing, for a fast start-up.
"""
