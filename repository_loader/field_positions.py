"""Where each field of a configuration stands in its text."""

import re
from typing import Any

from repository_loader.text_tree import LineIndex, Message, Scalar

_LAST_STEP = re.compile(r'(?:\.?[^.\[\]"]+|\[(?:\d+|"[^"]*")\])$')


class FieldPositions:
    """Maps the path of a field to its line and column.

    Paths read `max_batch_size`, `input[1].dims`, `dynamic_batching.preferred_batch_size[0]`,
    `ensemble_scheduling.step[0].input_map["INPUT"]`, `model_warmup[0].inputs["INPUT"].dims`. A field that is not in the
    text stands where its parent does.
    """

    __slots__ = ("_lines", "_offsets")

    def __init__(self, text: str, tree: Message | None, descriptor: Any) -> None:
        self._lines = LineIndex(text)
        self._offsets: dict[str, int] = {}
        if tree is not None:
            self._add(tree, descriptor, "")

    def position(self, path: str) -> tuple[int, int]:
        """Return `(line, column)` of the field, or of its nearest parent in the text, or (1, 1)."""
        while path:
            if path in self._offsets:
                return self._lines.position(self._offsets[path])
            shorter = _LAST_STEP.sub("", path)
            path = shorter if shorter != path else ""
        return 1, 1

    def at(self, offset: int) -> tuple[int, int]:
        """Return `(line, column)` of a character of the text."""
        return self._lines.position(offset)

    def _add(self, message: Message, descriptor: Any, prefix: str) -> None:
        counts: dict[str, int] = {}
        for entry in message.fields:
            known = descriptor.fields_by_name.get(entry.name)
            if known is None:
                continue
            path = prefix + entry.name
            self._offsets.setdefault(path, entry.start)
            for value in entry.values:
                child = path
                if known.is_repeated:
                    index = counts.get(entry.name, 0)
                    counts[entry.name] = index + 1
                    child = f"{path}[{index}]"
                    self._offsets[child] = value.start if entry.listed else entry.start
                if isinstance(value, Message) and known.message_type is not None:
                    self._add_message(value, known.message_type, path, child)

    def _add_message(self, value: Message, descriptor: Any, path: str, child: str) -> None:
        self._add(value, descriptor, child + ".")
        if descriptor.GetOptions().map_entry:
            key = value.scalar("key")
            if isinstance(key, Scalar):
                entry = f'{path}["{key.value}"]'
                self._offsets[entry] = value.start
                inner = descriptor.fields_by_name["value"].message_type
                for each in value.fields:
                    if each.name == "value" and inner is not None and isinstance(each.values[-1], Message):
                        self._add(each.values[-1], inner, f"{entry}.")
