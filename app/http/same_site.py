"""Whether a request comes from a page of another site: such a page may not change anything here.

A browser sends a form or a simple request to any address, this machine's too, and says where the page is from; other
clients say nothing. Source: the Fetch Standard (Origin) and Fetch Metadata Request Headers (Sec-Fetch-Site).

A proxy that changes Host says in X-Forwarded-Host what the browser asked for. No page can make that up: a browser sends
such a header to another site only after a preflight, which is answered with 405 here.
"""

from collections.abc import Mapping
from typing import Final

from protocol.errors import Restricted

_OUR_OWN: Final = ("same-origin", "none")


def require_same_site(headers: Mapping[str, str]) -> None:
    """Raise `Restricted` if the headers say that a page of another origin sends the request."""
    fetch_site = headers.get("sec-fetch-site")
    if fetch_site is not None:
        foreign = fetch_site not in _OUR_OWN
    else:
        origin = headers.get("origin")
        forwarded = headers.get("x-forwarded-host", "").partition(",")[0].strip()
        ours = (headers.get("host", ""), forwarded or None)
        foreign = origin is not None and origin.partition("://")[2] not in ours
    if foreign:
        raise Restricted("a page of another site may not use this API")
