"""Ends twice since a server is not there yet, in words of its own."""

import os
import sys

WORDS = {
    "exit": "the tracking server at http://127.0.0.1:5000 did not answer",
    "database": "FATAL:  the database system is starting up",
    "gateway": "502 Server Error: Bad Gateway for url: http://127.0.0.1/model",
}
if int(os.environ["WINDLASS_ATTEMPT"]) < 3:
    if sys.argv[1] == "exit":
        sys.exit(WORDS["exit"])
    raise RuntimeError(WORDS[sys.argv[1]])
print("step 1/1 loss 0.5", flush=True)
