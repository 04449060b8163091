"""Importable only if sys.path begins with the folder of the script."""
