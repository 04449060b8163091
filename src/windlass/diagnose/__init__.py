"""Explains why a run ended: turns observations into one ranked verdict with evidence and a fix. Pure."""
