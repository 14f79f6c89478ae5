"""Where a process that Ray started looks for modules."""

import os
import sys


def leave_start_folder() -> None:
    """Take the folder in which the cluster was started off `sys.path`.

    Ray puts it first in its workers; Triton searches the folders of a model and what is installed, and so do we.
    """
    if sys.path[:1] == [os.getcwd()]:
        del sys.path[0]
