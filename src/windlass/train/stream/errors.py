"""Errors of streams. Each message has one sentence with the request, what was found, and what to try."""

from __future__ import annotations


class StreamError(RuntimeError):
    """A stream cannot be opened, or a sample cannot be read."""


class SourceChanged(StreamError):
    """An object was overwritten or removed after it was indexed."""


class Busy(StreamError):
    """A store throttles requests or does not respond; the request is retried."""
