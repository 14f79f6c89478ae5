"""What a request does: infer, read or manage. Keys are given for these, and the admin API is all that manages."""

from typing import Final

from app.edge.restricted_api import HEALTH, INFERENCE, LOGGING, MODEL_REPOSITORY, PUBLIC, SHARED_MEMORY, TRACE

NO_KEY: Final = ""
"""Of health: probes have no key; and of the console's page, on which a person gives one."""
INFER: Final = "infer"
READ: Final = "read"
MANAGE: Final = "manage"
SCOPES: Final = frozenset((INFER, READ, MANAGE))

_READING: Final = frozenset(("RepositoryIndex", "index", "log_settings", "trace_settings", "traffic"))


def scope_of(category: str, operation: str) -> str:
    """Return the scope of an endpoint or a gRPC method of a category.

    What is in a category of the admin API and not known to read only, manages. TraceSetting and LogSettings of gRPC
    do either, which their messages tell, and so manage.
    """
    if category in (HEALTH, PUBLIC):
        return NO_KEY
    if category in (INFERENCE, SHARED_MEMORY):
        return INFER
    if category in (MODEL_REPOSITORY, TRACE, LOGGING) and operation not in _READING:
        return MANAGE
    return READ
