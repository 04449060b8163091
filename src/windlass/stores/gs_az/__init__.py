"""Google Cloud Storage and Azure's blobs, by the library obstore.

`opening` and `failure` are used in processes that only move files; a training script asks `program`, a process of its
own. Python 3.9.
"""

KINDS = {"gs": "gs", "gcs": "gs", "az": "az", "azure": "az", "abfs": "az"}
"""Scheme of an address → kind of store."""
INSTALL = "pip install 'obstore<0.13'"
