"""Queue admission as Kueue reports it."""
