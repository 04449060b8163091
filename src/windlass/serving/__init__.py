"""The model server: an ASGI application with SageMaker's contract. Travels to nodes; imports nothing of Windlass."""
