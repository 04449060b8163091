"""Plans: plain data that says every step a run would take. Making one touches nothing."""
