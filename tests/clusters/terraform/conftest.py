"""Fixtures of the emulated account for tests of the driver."""

from tests.fakeaws.emulator.fixtures import shared_aws, terraform

__all__ = ["shared_aws", "terraform"]
