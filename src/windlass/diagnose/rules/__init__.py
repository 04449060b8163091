"""Rules for all engines, on scripts, ranks and collectives."""
