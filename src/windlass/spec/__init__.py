"""What the user wrote, turned into checked and frozen values; nothing in this room touches the world.

`job` and `targets` are the values, `parse` makes them from YAML, `commandline` from a command, `dump` writes YAML
again, `schema` describes them. Import the module you need: this one stays empty so that start-up stays short.
"""
