"""Storage of a cluster: its bucket and the bucket's key, FSx, and volumes."""
