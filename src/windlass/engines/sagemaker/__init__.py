"""Amazon SageMaker, and its container contract on this machine."""
