"""Programs that ranks of services run. They are copied as single files, and run under the interpreter with Jupyter."""
