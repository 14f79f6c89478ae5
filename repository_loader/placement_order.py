"""In which order models are placed: who comes first has the room that there is."""

from collections.abc import Mapping

from repository_loader.deployment_plan import Plan
from repository_loader.ensemble_graph import step_models, steps_first
from repository_loader.snapshot import RepositoryModel


def placement_order(models: Mapping[str, RepositoryModel], former: Plan) -> list[RepositoryModel]:
    """Return models so that those come first of which all versions were isolated, then those of which some were.

    An ensemble comes after the models of its steps; cycles have no packages by now.
    """
    isolated = {(model.name, model.version) for model in former.models if model.placement == "isolated"}

    def steps(name: str) -> list[str]:
        packages = models[name].packages
        return [step for step in step_models(packages[-1].config) if step in models] if packages else []

    def rank(name: str) -> tuple[bool, bool]:
        were = [(name, package.version) in isolated and not steps(name) for package in models[name].packages]
        return not any(were), not all(were)

    return [models[name] for name in sorted(steps_first(models, steps), key=rank)]
