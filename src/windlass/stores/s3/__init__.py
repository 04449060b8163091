"""S3 by the standard library alone, because this code must run on nodes in any image with Python.

Images rarely contain obstore, and its threads do not survive a fork.
"""
