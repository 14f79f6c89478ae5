"""In which order models are placed: who comes first has the room that there is."""

from collections.abc import Mapping

from repository_loader.deployment_plan import Plan
from repository_loader.device_parts import device_parts
from repository_loader.ensemble_graph import step_models, steps_first
from repository_loader.snapshot import RepositoryModel


def placement_order(models: Mapping[str, RepositoryModel], former: Plan, num_gpus: int) -> list[RepositoryModel]:
    """Return models so that those come first of which all versions were isolated, then those of which some were.

    Of the others those on a GPU come first, which are nowhere but in replicas of their own. An ensemble comes after the
    models of its steps; cycles have no packages by now.
    """
    isolated = {(model.name, model.version) for model in former.models if model.placement == "isolated"}

    def steps(name: str) -> list[str]:
        packages = models[name].packages
        return [step for step in step_models(packages[-1].config) if step in models] if packages else []

    def rank(name: str) -> tuple[bool, bool, bool]:
        packages = models[name].packages
        were = [(name, package.version) in isolated and not steps(name) for package in packages]
        parts = device_parts(packages[-1].config, num_gpus) if packages else []
        return not any(were), not all(were), all(part.gpu is None for part in parts)

    return [models[name] for name in sorted(steps_first(models, steps), key=rank)]
