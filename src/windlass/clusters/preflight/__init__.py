"""Checks of an account before and after `cluster up`: programs, identity, permissions, quotas, offerings. Reads
only.
"""
