"""Job files, targets files and command lines as checked, frozen values. Pure: nothing here reads files or networks.

`job` and `targets` are the values, `parse` makes them from YAML, `commandline` from a command, `dump` writes YAML
again, `schema` describes them. Import the module you need: this one stays empty so that start-up stays short.
"""
