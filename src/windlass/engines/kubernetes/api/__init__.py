"""Access to the API server: client, login, informers, background threads and the run's Lease."""
