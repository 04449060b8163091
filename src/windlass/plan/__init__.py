"""Plans: every step of a future run as plain data. Making a plan changes nothing."""
