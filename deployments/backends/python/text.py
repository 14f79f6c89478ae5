"""Text that a model gives to `pb_utils`, where Triton takes a `std::string`: a `str`, or UTF-8 in `bytes`."""


def text_argument(what: str, value: object) -> str:
    """Return what a model gives for a string, such as an element of a BYTES tensor.

    Raises:
        TypeError: it is neither `str` nor `bytes`; `what` names it.
        UnicodeDecodeError: the bytes are no UTF-8.
    """
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(f"{what} must be a string, found type '{type(value)}'.")


def plain_text(text: str) -> str:
    """Return a string of a class of its own, such as NumPy's, as one of Python's: others cannot be sent."""
    return str.__str__(text)
