"""Values that commands print as JSON, and their schemas: projections of domain values, and separate view classes."""
