"""The record of a run: its events and status (`record`), their storage (`store`) and the output of its ranks
(`logs`).
"""
