"""Services, which run until they are closed or reach a time limit: jobs, credentials, and access from a browser."""
