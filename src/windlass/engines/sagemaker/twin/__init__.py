"""SageMaker's container contract on this machine, without Docker and without an account, made by processes."""
