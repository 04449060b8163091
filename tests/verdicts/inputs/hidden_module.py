"""Imports a module that imports `cmd`, whose name a file of this folder has too."""

import pdb

print(pdb.__name__)
