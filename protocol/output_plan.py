"""What a client wants its outputs to be: which ones, and each as JSON, binary, classes or in shared memory."""

from dataclasses import dataclass
from typing import Any

from protocol.classification import check_classifiable
from protocol.errors import InvalidArgument
from protocol.json_document import array_member, as_boolean, as_unsigned, parameters_of, string_member
from protocol.json_tensor import json_unsupported
from protocol.limits import Limits
from protocol.shared_memory import RegionRange, read_region
from protocol.signature import Signature

_PLANS_KEPT = 64


@dataclass(frozen=True, slots=True)
class OutputForm:
    """How one output is to be sent. `class_count` 0 is the tensor itself."""

    binary: bool
    class_count: int = 0
    region: RegionRange | None = None

    @property
    def makes_text(self) -> bool:
        """Whether numbers become text: JSON, or classes. Else they are copied as they are."""
        return bool(self.class_count) or (not self.binary and self.region is None)


JSON = OutputForm(False)
BINARY = OutputForm(True)


class OutputPlan:
    """The form of every output of a request; `forms` holds those that the request names, `default` is for the others.

    Plans are shared by the requests that want the same, so that what was made for one response serves the next.
    """

    __slots__ = ("binary_only", "default", "forms", "regions")

    def __init__(self, default: OutputForm, forms: dict[str, OutputForm]) -> None:
        self.default = default
        self.forms = forms
        self.binary_only = set(forms.values()) == {BINARY} if forms else default is BINARY
        self.regions = tuple([(name, form.region) for name, form in forms.items() if form.region is not None])

    def form(self, name: str) -> OutputForm | None:
        """Return the form of an output; None when it was not asked for."""
        return self.forms.get(name) if self.forms else self.default

    def key(self) -> tuple[Any, ...]:
        """Return a value that plans for the same have in common."""
        return (self.default, *self.forms.items())


ALL_BINARY = OutputPlan(BINARY, {})


class OutputPlans:
    """The plans of one model's requests."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._plans: dict[tuple[Any, ...], OutputPlan] = {}

    def plan(self, default: OutputForm, forms: dict[str, OutputForm]) -> OutputPlan:
        """Return the plan for these forms, the same one for the same forms.

        Raises:
            InvalidArgument: an output cannot be sent as wanted.
        """
        plan = OutputPlan(default, forms)
        known = self._plans.get(plan.key())
        if known is not None:
            return known
        check_forms(self._signature, forms)
        if not plan.regions:  # those come with names of the client's making
            if len(self._plans) >= _PLANS_KEPT:
                self._plans.clear()
            self._plans[plan.key()] = plan
        return plan


def read_output_forms(document: Any, limits: Limits) -> dict[str, OutputForm]:
    """Read the `outputs` of a parsed request; empty when it names none, which means all.

    Raises:
        InvalidArgument: with Triton's text.
    """
    if not isinstance(document, dict) or "outputs" not in document:
        return {}
    members = array_member(document, "outputs")
    if len(members) > limits.max_outputs:
        raise InvalidArgument(f"request has {len(members)} outputs, more than {limits.max_outputs}")
    forms: dict[str, OutputForm] = {}
    for element in members:
        parameters = parameters_of(element)
        _check_exclusive(parameters)
        name = string_member(element, "name")
        forms.setdefault(name, _form(parameters))  # of one that is named twice the first counts
    return forms


def check_forms(signature: Signature, forms: dict[str, OutputForm]) -> None:
    """Raise `InvalidArgument` if a named output cannot be sent as wanted; cheaper told before the model has run.

    When the request names none, the response tells: a model may leave outputs out.
    """
    for name, form in forms.items():
        spec = signature.outputs.get(name)
        if spec is None:
            continue
        if form.class_count:
            check_classifiable(spec.datatype)
        elif not form.binary and form.region is None and spec.datatype.name in ("FP16", "BF16"):
            raise json_unsupported(spec.datatype)


def _check_exclusive(parameters: dict[str, Any]) -> None:
    if "shared_memory_region" not in parameters:
        return
    if "classification" in parameters:
        raise InvalidArgument("Output can't set both 'shared_memory_region' and 'classification'")
    if "binary_data" in parameters and as_boolean(parameters["binary_data"], "binary_data"):
        raise InvalidArgument("Output can't set both 'shared_memory_region' and 'binary_data'")


def _form(parameters: dict[str, Any]) -> OutputForm:
    if not parameters:
        return JSON
    class_count = _class_count(parameters["classification"]) if "classification" in parameters else 0
    if (region := read_region(parameters)) is not None:
        return OutputForm(False, 0, region)
    binary = "binary_data" in parameters and as_boolean(parameters["binary_data"], "binary_data")
    if class_count:
        return OutputForm(binary, class_count)
    return BINARY if binary else JSON


def _class_count(value: Any) -> int:
    try:
        count = as_unsigned(value, "classification")
    except InvalidArgument as error:
        raise InvalidArgument(error.message.replace("Unable to parse", "Unable to set", 1)) from None
    if not 0 < count < 2**31:
        raise InvalidArgument(f"Unable to set 'classification': expected a value from 1 to {2**31 - 1}, got {count}")
    return count
