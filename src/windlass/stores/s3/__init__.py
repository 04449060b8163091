"""S3 by the standard library alone: what travels to a node must run in any image with Python.

obstore is not in such images, and its threads do not survive the fork of a process.
"""
