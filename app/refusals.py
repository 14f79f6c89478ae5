"""What is wrong with settings, in sentences."""

from pydantic import ValidationError


def refusals(error: ValidationError) -> list[str]:
    """Return a sentence on each setting that is refused, without its value."""
    sentences = []
    for each in error.errors(include_url=False, include_input=False):
        where = ".".join(map(str, each["loc"]))
        unknown = each["type"] == "extra_forbidden"
        text = "there is no such setting" if unknown else each["msg"].removeprefix("Value error, ")
        if each["type"] == "tuple_type":
            text = "must be a list"
        sentences.append(f"{where}: {text}" if where else text)
    return sentences
