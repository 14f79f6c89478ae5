"""How an ensemble reaches the models of its steps: in this core, or over a lane."""

from typing import Protocol

from protocol.infer import InferRequest


class Router(Protocol):
    """Sends a request to a model, wherever it runs."""

    def infer(self, model_name: str, version: int, request: InferRequest, interface: str = "") -> None:
        """Send the request; every outcome, errors too, comes through `request.reply`, never before this returns.

        `version` -1 is the highest that takes requests. The request goes to nothing of another `interface` than the one
        that it is made for ("": to whatever serves), see `Signature.interface`. Nothing is raised.
        """
        ...

    def cancel(self, request: InferRequest) -> None:
        """Give the request up; its reply still comes."""
        ...
