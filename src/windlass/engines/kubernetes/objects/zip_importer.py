"""Imports modules from a zip file, and compiles each only once. In packed files, this module is named
`zip_importer`.
"""

import os
import sys
import zipimport


class Importer(zipimport.zipimporter):
    """Zip importer that compiles each module once. Python's zip importer compiles it twice, to find its path and to run
    it.
    """

    def get_filename(self, fullname: str) -> str:
        """Returns the path of a module. Raises ZipImportError if it does not exist."""
        path = f"{self.archive}{os.sep}{self.prefix}{fullname.rpartition('.')[2]}"
        return f"{path}{os.sep}__init__.py" if self.is_package(fullname) else f"{path}.py"


def install() -> None:
    """Installs the importer for all later imports."""
    sys.path_hooks.insert(0, Importer)
    sys.path_importer_cache.clear()
