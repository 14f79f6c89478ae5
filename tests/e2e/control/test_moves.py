"""Explicit mode: models are loaded in another placement, and nobody who asks them notices."""

from pathlib import Path

import pytest
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.e2e.tagged_models import STAGED, Asking, ask, tag, write_tagged
from tests.serving import Server, wait_until

PLACED = 'parameters { key: "eagleray.placement" value { string_value: "%s" } }'
REPLICAS = 'parameters { key: "eagleray.replicas" value { string_value: "2" } }'


def test_a_model_that_is_loaded_in_another_place_answers_all_the_way(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    def load(number: str, config: str) -> None:
        write_tagged(repository, "wanders", number, config=config)
        triton.load_model("wanders")

    load("1", PLACED % "packed")
    with Asking(server, "wanders").running() as asked:
        for number, placement in enumerate(("isolated", "embedded", "isolated", "packed", "embedded", "packed"), 2):
            load(str(number), PLACED % placement)
            assert server.states("wanders") == {"1": ("READY", "")}
        with pytest.raises(InferenceServerException, match="nonesuch"):
            load("nonesuch", PLACED % "isolated")
        load("8", REPLICAS)  # which `auto` isolates
    asked.assert_served()
    with server.client() as client:
        wait_until(lambda: {tag(ask(client, "wanders")) for _ in range(20)} == {8}, "no answers but the last place's")
    tags = {tag(answer) for answer in asked.answers}
    assert {1, 7} <= tags <= {*range(1, 9)}


def test_a_model_serves_on_where_it_is_when_another_place_cannot_have_it(
    server: Server, repository: Path, triton: http_client.InferenceServerClient
) -> None:
    write_tagged(repository, "stays", "1", config=PLACED % "packed")
    triton.load_model("stays")
    with Asking(server, "stays", count=1).running() as asked:
        write_tagged(repository, "stays", "nonesuch", config=PLACED % "isolated")
        with pytest.raises(InferenceServerException, match="nonesuch"):
            triton.load_model("stays")
        assert server.states("stays") == {"1": ("READY", "")}
    asked.assert_served()
    assert {tag(answer) for answer in asked.answers} == {1}


@pytest.mark.parametrize("placement", ["auto", "isolated"])
def test_an_ensemble_answers_all_the_way_while_its_step_is_loaded_in_other_places(
    server: Server, repository: Path, triton: http_client.InferenceServerClient, placement: str
) -> None:
    step, ensemble = f"moves_below_{placement}", f"above_{placement}"
    write_tagged(repository, step, "1", config=PLACED % "packed")
    (repository / ensemble / "1").mkdir(parents=True)
    config = (STAGED % step).replace("max_inflight_requests: 8", "")
    (repository / ensemble / "config.pbtxt").write_text(config + (PLACED % placement if placement != "auto" else ""))
    triton.load_model(ensemble)
    with Asking(server, ensemble).running() as asked:
        for number, place in enumerate(("isolated", "packed", "embedded", "isolated", "embedded", "packed"), 2):
            write_tagged(repository, step, str(number), config=PLACED % place)
            triton.load_model(step)
    asked.assert_served()
    with server.client() as client:
        wait_until(lambda: {tag(ask(client, ensemble)) for _ in range(20)} == {7}, "no answers but the last place's")
