"""S3 by the standard library alone, because this code must run on nodes in any image with Python.

Images rarely contain obstore, and threads of obstore do not survive a fork.
"""
