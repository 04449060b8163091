"""Google Cloud Storage and Azure's blobs, by the library obstore.

`store` is used in processes that only move files; a training script forks, and asks a process of its own: `process`
starts it, `program` is what it runs. Python 3.9.
"""

KINDS = {"gs": "gs", "gcs": "gs", "az": "az", "azure": "az", "abfs": "az"}
"""Scheme of an address → kind of store."""
INSTALL = "pip install 'obstore<0.13'"
