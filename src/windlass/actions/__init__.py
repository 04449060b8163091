"""One function for each thing a person can ask; the command line and the Python API are thin covers of these."""
