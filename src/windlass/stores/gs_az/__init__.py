"""Google Cloud Storage and Azure Blob Storage, by the library obstore.

`store` calls obstore directly, in processes that only move files. Training scripts fork, so they use a separate
process: `process` starts it, and `program` is what it runs. Python 3.9.
"""

KINDS = {"gs": "gs", "gcs": "gs", "az": "az", "azure": "az", "abfs": "az"}
"""Scheme of an address → kind of store."""
INSTALL = "pip install 'obstore<0.13'"
