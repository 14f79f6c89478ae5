"""What is wrong with settings, in sentences."""

from collections.abc import Callable

from pydantic import ValidationError


def refusals(error: ValidationError, near: Callable[[str], str] = lambda name: "") -> list[str]:
    """Return a sentence on each setting that is refused, without its value; `near` is the one that may be meant."""
    sentences = []
    for each in error.errors(include_url=False, include_input=False):
        where = ".".join(map(str, each["loc"]))
        unknown = each["type"] == "extra_forbidden"
        text = "there is no such setting" if unknown else each["msg"].removeprefix("Value error, ")
        if unknown and (meant := near(where)):
            text += f"; did you mean {meant}?"
        if each["type"] == "tuple_type":
            text = "must be a list"
        sentences.append(f"{where}: {text}" if where else text)
    return sentences
