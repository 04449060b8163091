"""Programs of the ranks of services. They travel alone, and run under the interpreter that has the Jupyter packages."""
