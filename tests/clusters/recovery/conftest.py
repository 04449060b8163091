"""Fixtures of the emulated account for tests of recovery."""

from tests.fakeaws.emulator.fixtures import shared_aws, terraform

__all__ = ["shared_aws", "terraform"]
