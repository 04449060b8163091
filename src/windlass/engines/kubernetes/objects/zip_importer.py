"""Imports from a zip file, each module compiled once. In the packed files it is a module of its own, `zip_importer`."""

import os
import sys
import zipimport


class Importer(zipimport.zipimporter):
    """Python's own importer, which compiles a module to say where it is, and once more to run it."""

    def get_filename(self, fullname: str) -> str:
        """Where the module is. Raises ZipImportError where there is none."""
        path = f"{self.archive}{os.sep}{self.prefix}{fullname.rpartition('.')[2]}"
        return f"{path}{os.sep}__init__.py" if self.is_package(fullname) else f"{path}.py"


def install() -> None:
    """Use it for what is imported from now on."""
    sys.path_hooks.insert(0, Importer)
    sys.path_importer_cache.clear()
