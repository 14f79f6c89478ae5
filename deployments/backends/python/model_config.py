"""`pb_utils.ModelConfig`: what a model's `auto_complete_config` fills in."""

import json
from collections.abc import Mapping
from typing import Any

_IO_PROPERTIES = ("name", "data_type", "dims")


class ModelConfig:
    """A model configuration as a dictionary with Triton's field names."""

    def __init__(self, config: str) -> None:
        self._config: dict[str, Any] = json.loads(config)

    def as_dict(self) -> dict[str, Any]:
        """Return the dictionary itself."""
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the largest batch.

        Raises:
            ValueError: the configuration asks for more.
        """
        configured = self._config.get("max_batch_size", 0)
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in auto-complete-config function for model "
                f"'{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Choose the dynamic batcher with its defaults, unless it is configured.

        Raises:
            ValueError: the configuration chose another scheduler.
        """
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function "
                    f"for model '{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        """Set `decoupled`.

        Raises:
            ValueError: another property is given, or the configuration says otherwise.
        """
        where = f"in auto-complete-config function for model '{self._name}'"
        for key in transaction_policy_dict:
            if key != "decoupled":
                raise ValueError(f"model transaction property {where} contains property other than 'decoupled'.")
        policy = self._config.setdefault("model_transaction_policy", {})
        decoupled = transaction_policy_dict.get("decoupled", policy.get("decoupled", False))
        if policy.setdefault("decoupled", decoupled) != decoupled:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{self._name}', "
                f"which is already set to '{policy['decoupled']}'."
            )

    def add_input(self, input: Mapping[str, Any]) -> None:
        """Add an input with `name`, `data_type`, `dims` and perhaps `optional`, or complete the configured one.

        Raises:
            ValueError: a property is missing, unknown, or differs from the configuration.
        """
        self._add("input", input, ("optional",))

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Add an output with `name`, `data_type` and `dims`, or complete the configured one.

        Raises:
            ValueError: a property is missing, unknown, or differs from the configuration.
        """
        self._add("output", output, ())

    @property
    def _name(self) -> str:
        return str(self._config.get("name", ""))

    def _add(self, kind: str, tensor: Mapping[str, Any], more_properties: tuple[str, ...]) -> None:
        allowed = _IO_PROPERTIES + more_properties
        where = f"in auto-complete-config function for model '{self._name}'"
        for key in tensor:
            if key not in allowed:
                names = ", ".join(f"'{name}'" for name in allowed[:-1]) + f" and '{allowed[-1]}'"
                raise ValueError(f"{kind} '{tensor.get('name', '')}' {where} contains property other than {names}.")
        for key in _IO_PROPERTIES:
            if key not in tensor:
                subject = kind if key == "name" else f"{kind} '{tensor['name']}'"
                raise ValueError(f"{subject} {where} is missing '{key}' property.")
        configured: list[dict[str, Any]] = self._config.setdefault(kind, [])
        for present in configured:
            if present["name"] == tensor["name"]:
                self._check_equal(kind, present, tensor)
                present.update(tensor)
                return
        configured.append(dict(tensor))

    def _check_equal(self, kind: str, present: Mapping[str, Any], tensor: Mapping[str, Any]) -> None:
        """Compare what the configuration says of a tensor, and the model too."""
        name = tensor["name"]
        if present["data_type"] not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {present['data_type']} for "
                f"{kind} '{name}', model provides {tensor['data_type']}"
            )
        if present["dims"] and list(present["dims"]) != list(tensor["dims"]):
            raise ValueError(
                f"model '{self._name}', tensor '{name}': the model expects dims {list(tensor['dims'])} but the model "
                f"configuration specifies dims {list(present['dims'])}"
            )
        if "optional" in present and "optional" in tensor and present["optional"] != tensor["optional"]:
            raise ValueError(
                f"model '{self._name}', tensor '{name}': the model expects optional {tensor['optional']} but the "
                f"model configuration specifies optional {present['optional']}"
            )
