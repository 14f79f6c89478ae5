"""Reads config.pbtxt: bytes become a ModelConfig, or findings with line and column."""

import re
from dataclasses import dataclass

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.enum_values import quoted_enum_value, unknown_enum_value, unknown_enum_values
from repository_loader.field_positions import FieldPositions
from repository_loader.findings import Fault, Finding
from repository_loader.leniency import AliasError, apply_aliases, lift_aliases, normalise_spellings
from repository_loader.meant_name import enum_values, meant_field, placeholder_at
from repository_loader.text_tree import BROKEN_ESCAPE, MalformedText, parse_tree

MAX_CONFIG_BYTES = 1 << 20
_UNKNOWN_VALUE = re.compile(r'Enum type "([^"]*)" has no value named (.+)\.')
_UNKNOWN_FIELD = re.compile(r'Message type "([^"]*)" has no field named "([^"]*)"\.')
_STRING_OR_COMMENT = re.compile(rb"""(["'])(?:(?!\1)[^\\\n]|\\.)*\1?|\#[^\n]*""")
_LAST_FIELD = re.compile(r"\b(\w++)\s*+:\s*+(?:\[[^\[\]]*+)?$")  # linear, whatever stands before it


@dataclass(frozen=True, slots=True)
class ConfigText:
    """A file that was read; `config` is None when one of the findings is an error."""

    path: str
    config: ModelConfig | None
    positions: FieldPositions
    findings: tuple[Finding, ...]

    def warning(self, fault: Fault) -> Finding:
        """Place a remark about a field."""
        return Finding("warning", self.path, *self.positions.position(fault.field), fault.message)

    def error(self, fault: Fault) -> Finding:
        """Place a fault of a field."""
        return Finding("error", self.path, *self.positions.position(fault.field), fault.message)


def empty_config_text(path: str) -> ConfigText:
    """Return what a model without config.pbtxt starts from."""
    return ConfigText(path, ModelConfig(), FieldPositions("", None, ModelConfig.DESCRIPTOR), ())


def parse_config_text(data: bytes, path: str) -> ConfigText:
    """Parse the bytes of a config.pbtxt; `path` only names it in findings. Never raises."""
    positions = FieldPositions("", None, ModelConfig.DESCRIPTOR)

    def failed(message: str, line: int = 1, column: int = 1) -> ConfigText:
        return ConfigText(path, None, positions, (Finding("error", path, line, column, message),))

    if len(data) > MAX_CONFIG_BYTES:
        return failed(f"the file has more than the allowed {MAX_CONFIG_BYTES} bytes")
    data = _STRING_OR_COMMENT.sub(_readable, data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        column = len(before) - before.rfind(b"\n")
        return failed("the file is not UTF-8 text", before.count(b"\n") + 1, column)
    try:
        tree = parse_tree(text)
        positions = FieldPositions(text, tree, ModelConfig.DESCRIPTOR)
        text, aliases = lift_aliases(text, tree)
    except MalformedText as malformed:
        positions = FieldPositions(text, None, ModelConfig.DESCRIPTOR)
        is_final = malformed.message == BROKEN_ESCAPE or "nested" in malformed.message
        reported = None if is_final else _protobuf_error(text)
        return failed(*(reported or (malformed.message, *positions.at(malformed.offset))))
    except AliasError as wrong:
        return failed(wrong.message, *positions.at(wrong.offset))
    config = ModelConfig()
    try:
        text_format.Parse(text, config)
    except text_format.ParseError as error:
        return failed(*_place(error, text))
    for fault in unknown_enum_values(config):
        return failed(fault.message, *positions.position(fault.field))
    findings = [
        Finding("warning", path, *positions.at(offset), note) for offset, note in apply_aliases(config, aliases)
    ]
    for fault in normalise_spellings(config):
        findings.append(Finding("warning", path, *positions.position(fault.field), fault.message))
    return ConfigText(path, config, positions, tuple(findings))


def _readable(match: re.Match[bytes]) -> bytes:
    """Return a string as it is, and a comment as UTF-8 text: nobody reads it, in whichever encoding it is."""
    return match[0].decode(errors="replace").encode() if match[1] is None else match[0]


def _protobuf_error(text: str) -> tuple[str, int, int] | None:
    """Return protobuf's own complaint, which knows the schema, if it has one."""
    try:
        text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        return _place(error, text)
    except RecursionError:
        return None
    return None


def _place(error: text_format.ParseError, text: str) -> tuple[str, int, int]:
    """Take the message of a parse error apart: without its position and without the line it repeats."""
    message = re.sub(r"^\d+:\d+ : ", "", str(error))
    line, column = error.GetLine() or 1, error.GetColumn() or 1
    lines = text.split("\n")
    for quoted in {lines[line - 1], lines[line - 1].strip()} if line <= len(lines) else ():
        message = message.removeprefix(f"'{quoted}': ")
    misnamed = _UNKNOWN_FIELD.fullmatch(message)
    if misnamed:
        return message + meant_field(misnamed[2], misnamed[1]), line, column
    unknown = _UNKNOWN_VALUE.fullmatch(message)
    if unknown and unknown[2][0] in "\"'":
        return quoted_enum_value(unknown[2]), line, column
    before = "\n".join([*lines[: line - 1], lines[line - 1][: column - 1]]) if line <= len(lines) else text
    field = _LAST_FIELD.search(before) if unknown else None
    if unknown and field:
        message = unknown_enum_value(unknown[2], field[1], enum_values(unknown[1]))
    if placeholder := placeholder_at(text, len(before)):
        message = f"{message.removesuffix('.')}; a value must take the place of {placeholder}"
    return message, line, column
