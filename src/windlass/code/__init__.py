"""Packages the code of a job: selects the files of a folder, refuses credentials, and creates one archive."""
