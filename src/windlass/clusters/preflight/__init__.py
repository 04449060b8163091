"""Checks of an account before and after `cluster up`: programs, identity, permissions, quotas, offers. Reads only."""
