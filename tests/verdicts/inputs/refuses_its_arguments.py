"""Refuses its arguments as absl, Hydra or Typer do, or as a child of accelerate's launcher."""

import subprocess
import sys

WORDS = {
    "absl": "FATAL Flags parsing error:\n  Unknown command line flag 'lr'. Did you mean: rate ?\nPass --helpshort.",
    "hydra": "Could not override 'optim.lrr'.\nKey 'lrr' is not in struct\n    full_key: optim.lrr\n\n"
    "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
    "typer": "Usage: train.py [OPTIONS] DATA\n╭─ Error ────╮\n│ Missing argument 'DATA'.  │\n╰────────────╯",
}
CHILD = "import argparse; argparse.ArgumentParser(prog='child.py').parse_args()"
if sys.argv[1] == "accelerate":
    subprocess.run([sys.executable, "-c", CHILD, "--lrr", "3"], check=True)
sys.exit(print(WORDS[sys.argv[1]], file=sys.stderr) or (2 if sys.argv[1] == "typer" else 1))
