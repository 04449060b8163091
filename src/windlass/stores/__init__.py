"""Object stores for every process, on nodes too: S3 by the standard library, gs and az by a process of obstore."""
