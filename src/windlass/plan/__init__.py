"""Plans: every step that a run would take, as plain data. Making one touches nothing."""
