"""What runs, plans, verdicts and reports look like: dataclasses of which text, JSON and JSON Schema are made."""
