"""Starts the training in the background and ends, as a script with & does."""

import subprocess
import sys

subprocess.Popen([sys.executable, "-c", "import time; print('step 1/3 loss 0.1', flush=True); time.sleep(60)"])
