"""Object stores for training scripts: S3 by the standard library, others by a process that has obstore."""
