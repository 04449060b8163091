"""Object stores, on nodes too: one interface, S3 by the standard library, gs and az by a process that has obstore."""
