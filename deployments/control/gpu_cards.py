"""Cards: the GPUs of the cluster by number, so that `gpus: [0]` and `gpus: [1]` are two of them.

Ray gives fractions of GPUs, and would put those of two replicas on one. A placement group of one whole GPU is a
different card than any other such group; replicas then take their fraction of it. A card belongs to Eagleray from the
first model on it to the last, and outlives the controller.
"""

import time
from collections.abc import Collection
from typing import Final

import ray
from ray.util import get_placement_group, placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup

from deployments.serve_internals import placement_group_of, share_of_gpu
from repository_loader.node_needs import ANY_NODE, NodeNeeds

_PREFIX: Final = "eagleray-gpu-"
_POLL_S: Final = 0.25
_NOWHERE: Final = ("PENDING", "RESCHEDULING")
"""States of a card that is on no node: none has had a GPU for it yet, or its node has died."""


def card_resources(gpu: int, share: float, needs: NodeNeeds = ANY_NODE) -> dict[str, float]:
    """Return what an actor asks Ray for to get a share of a card, which is reserved, on such a node, if it was not."""
    return share_of_gpu(_card(f"{_PREFIX}{gpu}", needs), share)


def _card(name: str, needs: NodeNeeds) -> PlacementGroup:
    try:
        return get_placement_group(name)
    except ValueError:
        labels = [dict(needs.labels)] if needs.labels else None
        bundle = {"GPU": 1, **needs.resources()}
        return placement_group([bundle], name=name, lifetime="detached", bundle_label_selector=labels)


def release_cards(timeout_s: float = 20.0, needed: Collection[int] = ()) -> bool:
    """Give back each card that is not `needed` once nothing runs on it; blocks, and returns whether none is left.

    A card in use is left alone: Ray 2.60's raylet aborts, and its node with it, when the group of one is removed.
    """
    ends_s = time.monotonic() + timeout_s
    while held := _held_cards(needed):
        free = ray.available_resources()
        for card, state in held:
            if state in _NOWHERE or all(free.get(name) == 1 for name in share_of_gpu(card, 1)):
                remove_placement_group(card)
        if time.monotonic() > ends_s:
            return False
        time.sleep(_POLL_S)
    return True


def _held_cards(needed: Collection[int] = ()) -> list[tuple[PlacementGroup, str]]:
    kept = {f"{_PREFIX}{gpu}" for gpu in needed}
    return [
        (placement_group_of(group_id), group["state"])
        for group_id, group in placement_group_table().items()
        if group["name"].startswith(_PREFIX) and group["name"] not in kept and group["state"] != "REMOVED"
    ]
