"""What keeps a cluster's files: its bucket and the bucket's key, FSx, and volumes."""
