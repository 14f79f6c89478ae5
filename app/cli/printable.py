"""Text of models and servers as a terminal may have it."""


def printable(text: str) -> str:
    """Return a text, as one line, without anything that a terminal would act upon."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def printable_lines(text: str) -> str:
    """Return a text of several lines without anything else that a terminal would act upon."""
    return "\n".join(map(printable, text.expandtabs().splitlines()))
