"""Storage: copies sets of files between folders and object stores, verified and resumable."""
