"""What a client is told of models that share a name, with `--model-namespacing`."""

import asyncio
from urllib.parse import quote

from deployments.control.directory import READY, RENAMED, UNAVAILABLE, UNLOADED
from repository_loader.namespaces import identifier
from tests.app.http.served import Served, entry
from tests.app.http.wire import infer

ERROR = "There are 2 identifiers of model 'm' in global map, model namespace must be provided to resolve ambiguity."


def test_a_name_of_two_is_refused_in_tritons_words_and_their_identifiers_are_answered() -> None:
    async def test() -> None:
        served = Served(namespacing=True)
        both = [identifier("m", repository) for repository in ("/srv/a", "/srv/b")]
        for name in both:
            served.service.models.directory.models[name] = entry(name, (1, READY, ""))
            served.host.ready.add((name, 1))
        for path in ("/v2/models/m", "/v2/models/m/versions/1", "/v2/models/m/ready", "/v2/models/m/config"):
            answer = await served.request("GET", path)
            assert (answer.status, answer.error) == (400, ERROR), path
        for method in ("GET", "POST"):
            answer = await served.request(method, "/v2/repository/models/m/traffic")
            assert (answer.status, answer.error) == (400, ERROR), method
        answer = await served.answered(infer(model="m"))
        assert (answer.status, answer.error) == (400, ERROR)
        for name in both:
            assert (await served.answered(infer(model=quote(name)))).status == 200
        index = (await served.request("POST", "/v2/repository/index")).json
        assert [row for row in index if row["name"].startswith("m")] == [
            {"name": "m", "version": "1", "state": "READY"}
        ] * 2
        served.service.models.directory.models.pop(both[0])
        assert (await served.request("GET", "/v2/models/none")).status == 404

    asyncio.run(test())


def test_what_is_left_under_a_former_name_is_neither_in_the_index_nor_ambiguous() -> None:
    """One repository has the name alone now; what it ran as while another had it too is gone, and then that as well."""

    async def test() -> None:
        served = Served(namespacing=True)
        models = served.service.models.directory.models
        for repository in ("/srv/a", "/srv/b"):
            name = identifier("m", repository)
            models[name] = entry(name, (1, UNAVAILABLE, RENAMED))
        for state, reason, status in ((READY, "", 200), (UNAVAILABLE, UNLOADED, 404)):
            models["m"] = entry("m", (1, state, reason))
            served.host.ready = {("m", 1)} if state == READY else set()
            index = (await served.request("POST", "/v2/repository/index")).json
            assert [row["state"] for row in index if row["name"] == "m"] == [state]
            assert (await served.request("GET", "/v2/models/m")).status == status

    asyncio.run(test())


def test_without_namespaces_a_name_that_looks_like_an_identifier_is_one_like_any_other() -> None:
    async def test() -> None:
        served = Served()
        name = "m@prod-20240115"
        served.service.models.directory.models[name] = entry(name, (1, READY, ""))
        served.host.ready.add((name, 1))
        assert (await served.request("GET", "/v2/models/m")).status == 404
        index = (await served.request("POST", "/v2/repository/index")).json
        assert [row["name"] for row in index if row["name"].startswith("m")] == [name]

    asyncio.run(test())
