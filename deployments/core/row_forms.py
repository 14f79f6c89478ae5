"""How the kinds of rows are called where processes read them that may run another version of Eagleray.

A kind's form is its name and a digest of what its numbers mean. Rows of another form are left out: whoever took them
for rows of his own would count wrong, or not at all.
"""

import hashlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any, Final

from deployments.core.counts import CLIENT, FIRST_RESPONSE, KINDS, LATENCIES, QUEUE, SLOT_NS, SUMMARY, Label
from deployments.core.duration_buckets import BOUNDS_NS

logger = logging.getLogger(__name__)

_BESIDE_FIELDS: Final[dict[str, object]] = {
    CLIENT: BOUNDS_NS,
    QUEUE: BOUNDS_NS,
    FIRST_RESPONSE: "upper bound, in microseconds",
    SUMMARY: (LATENCIES, SLOT_NS),
}
"""What the numbers of a kind mean, as far as its fields do not say it."""


def _form(kind: str) -> str:
    fields = [(name, datatype.__name__) for name, datatype, *_ in KINDS[kind]._fields_]
    meaning = repr((Label._fields, fields, _BESIDE_FIELDS.get(kind)))
    return f"{kind} {hashlib.sha256(meaning.encode()).hexdigest()[:8]}"


FORMS: Final = {kind: _form(kind) for kind in KINDS}
_KINDS: Final = {form: kind for kind, form in FORMS.items()}
_unknown: set[object] = set()


def kind_of(form: object) -> str | None:
    """Return the kind whose form this is; None, and once a warning, where it is another version's."""
    kind = _KINDS.get(form) if isinstance(form, str) else None
    if kind is None and repr(form) not in _unknown:
        _unknown.add(repr(form))
        logger.warning("what another version of Eagleray has counted is left out of the statistics: %.64r", form)
    return kind


def written(rows: Iterable[list[object]]) -> Iterator[list[object]]:
    """Return rows of `Totals.to_list` with the forms of their kinds."""
    return ([FORMS[str(kind)], *rest] for kind, *rest in rows)


def understood(rows: Iterable[list[Any]]) -> Iterator[list[Any]]:
    """Return rows that `written` of any version has made, for `Totals.add_list`; those of other forms are left out."""
    for form, *rest in rows:
        kind = kind_of(form)
        if kind is not None:
            yield [kind, *rest]
