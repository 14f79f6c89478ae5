"""Which tests check which sentence of `docs/behaviour.md`; a module for some sections each.

A key is words that one sentence (or row of a table) of the page holds, a value the tests that check it, as
`path::function` below `tests/`. Whoever writes a sentence names its test here.
"""

from tests.docs.behaviour import deployments, faults, models, operation, placement, requests, schedulers, stopping

TESTS = (
    requests.TESTS
    | placement.TESTS
    | models.TESTS
    | schedulers.TESTS
    | faults.TESTS
    | operation.TESTS
    | deployments.TESTS
    | stopping.TESTS
)
