"""Errors of streams, with one sentence on what was asked, what was found and what to try."""

from __future__ import annotations


class StreamError(RuntimeError):
    """A stream cannot be opened, or a sample of it cannot be read."""


class SourceChanged(StreamError):
    """An object is not the one that was indexed: it was written or removed since."""


class Busy(StreamError):
    """A store asks for fewer requests, or does not answer: the request is repeated."""
