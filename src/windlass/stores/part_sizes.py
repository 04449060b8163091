"""Sizes of the parts in which uploads send a file."""

COPY_PART_BYTES = 8 << 20
"""Part of a copied file. Each part has a checksum in the file's digest, so this size is part of the digest format."""
STREAM_PART_BYTES = 16 << 20
"""Part of a stream whose length is unknown, such as a checkpoint file that is written to a store."""
MAX_PARTS = 10_000
"""Maximum number of parts of an upload, the limit of S3."""
