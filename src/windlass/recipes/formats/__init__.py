"""Formats of data sets that are read or written without the libraries that made them."""
