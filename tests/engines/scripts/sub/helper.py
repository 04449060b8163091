"""Found only where sys.path begins with the folder of the script."""
