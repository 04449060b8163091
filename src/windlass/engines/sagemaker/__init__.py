"""Engines for Amazon SageMaker: training jobs in AWS, and an emulation of its containers on this machine."""
