"""The model server: an ASGI application with SageMaker's contract. Copied to nodes, it imports only this package."""
