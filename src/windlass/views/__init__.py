"""What commands print as JSON and its schemas: projections of domain values, and values of their own for the rest."""
