"""Reads whole model repositories into a snapshot."""

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase

from repository_loader.completion import ModelCompleter
from repository_loader.config_text import parse_config_text
from repository_loader.ensemble_graph import EnsembleVerdict, check_ensembles, steps_of
from repository_loader.field_positions import FieldPositions
from repository_loader.findings import Fault, Finding
from repository_loader.model_reader import ModelReader
from repository_loader.namespaces import FoundModels, identifier, meant_by, shared_name
from repository_loader.snapshot import LoaderOptions, Override, RepositoryModel, Snapshot
from repository_loader.storage.location import LocationError, is_remote, read_location
from repository_loader.storage.mirror import Fetched, RepositoryFolder, local_folder
from repository_loader.storage.remote_store import StorageError
from repository_loader.subfolders import CONFIG_FILE, is_text

MAX_PARALLEL_READS = 4
_PATTERN = frozenset("*?[")
DUPLICATE_REASON = "model appears in two or more repositories"


class RepositoryError(Exception):
    """A repository itself cannot be read, which is not the same as one without models."""


def load_repositories(
    paths: Sequence[str],
    options: LoaderOptions,
    complete_model: ModelCompleter | None,
    only: Collection[str] | None = None,
    overrides: Mapping[str, Override] | None = None,
    unreadable: dict[str, str] | None = None,
    dependents: Collection[str] = (),
    running: Mapping[str, RepositoryModel] | None = None,
) -> Snapshot:
    """Read every model of the repositories, or those named in `only` and the models their ensembles need.

    `overrides` replace a model's config.pbtxt, or all of its files. Blocking; models are read in up to
    `MAX_PARALLEL_READS` threads, so `complete_model` must allow that. A model that cannot be loaded is in the snapshot
    with its `failure`. Models that share a name under `--model-namespacing` are known by their identifiers; `only` and
    `overrides` may name all of them by that name. Repositories that cannot be read are left out where `unreadable` is
    given, which takes the reasons. Beside `only`, the ensembles in `dependents` are read, and judged with those of
    their other steps that are `running` as these are; what is taken from there is not in the snapshot.

    Raises:
        RepositoryError: a path is no folder that can be listed, or an address cannot be read and never was.
    """
    findings: list[Finding] = []
    found, mirrors = _find(paths, options, findings, unreadable)
    given = overrides or {}
    folders = {**found.folders, **{name: [each.model_path] for name, each in given.items() if each.model_path}}
    found = replace(found, folders=folders)
    here: dict[str, str] = {}
    missing: dict[str, str] = {}
    models: dict[str, RepositoryModel] = {}
    beside: dict[str, RepositoryModel] = {}
    stays = {name: model for name, model in (running or {}).items() if name not in dependents}

    def meant(names: Collection[str]) -> set[str]:
        return {each for name in names for each in meant_by(name, folders, namespacing=options.namespacing)}

    def read(name: str) -> RepositoryModel:
        override = given.get(name) or (given.get(shared_name(name)) if options.namespacing else None)
        own_name = found.names.get(name, name)
        if (reason := missing.get(folders[name][0])) is not None:
            model = _unread(f"{read_location(found.repositories[name]).shown}/{own_name}", own_name, reason)
        else:
            model = _read(own_name, [here.get(path, path) for path in folders[name]], options, complete_model, override)
        return found.placed(model, name) if options.namespacing else model

    with ThreadPoolExecutor(MAX_PARALLEL_READS, "read-model") as threads:
        for names, taken in ((set(folders) if only is None else meant(only), {}), (meant(dependents), stays)):
            needed = names - models.keys()
            while needed:
                beside |= {name: taken[name] for name in needed & taken.keys()}
                wanted = sorted((needed & folders.keys()) - beside.keys())
                _fetch([folders[name] for name in wanted], mirrors, findings, here, missing)
                for model in threads.map(read, wanted):
                    models[model.name] = model
                known = beside | models
                steps = {name for model in known.values() for name in steps_of(model)}
                needed = (steps & (folders.keys() | taken.keys())) - known.keys()
    for name, verdict in check_ensembles(beside | models).items():
        if name in models:
            models[name] = _judged(models[name], verdict)
    for name in models.keys() & folders.keys():
        places = {
            here.get(path, path): f"{mirror.address}/{os.path.basename(path)}"
            for path in folders[name]
            if (mirror := mirrors.get(os.path.dirname(path))) is not None
        }
        models[name] = _as_stored(models[name], places) if places else models[name]
    return Snapshot(dict(sorted(models.items())), tuple(findings))


def normalised(path: str) -> str:
    """Return what distinguishes a repository from others: its path or address, in one spelling where it can be read."""
    if not is_remote(path):
        return os.path.abspath(path)
    try:
        return read_location(path).uri
    except LocationError:
        return path


def _listed(repository: str, cache_dir: str, findings: list[Finding]) -> tuple[RepositoryFolder, list[str]]:
    """Return the folder of a repository, and the names of the folders in it that may be models."""
    try:
        folder = local_folder(repository, cache_dir)
    except (StorageError, LocationError) as error:
        raise RepositoryError(str(error)) from error
    except OSError as error:
        path = os.path.abspath(repository)
        raise RepositoryError(f"model repository '{path}' cannot be read: {error.strerror}") from error
    findings += [Finding("warning", folder.address, 1, 1, warning) for warning in folder.warnings]
    return folder, _model_names(folder, findings)


def _unread(path: str, name: str, reason: str) -> RepositoryModel:
    return RepositoryModel(name, path, None, (), (Finding("error", path, 1, 1, reason),), reason)


def find_models(
    paths: Sequence[str], options: LoaderOptions, unreadable: dict[str, str] | None = None
) -> Mapping[str, list[str]]:
    """List the folders of the repositories that may be models, by the name that each is known by; blocks.

    Of a remote repository nothing but the list is fetched. `unreadable` is as of `load_repositories`.

    Raises:
        RepositoryError: a path is no folder that can be listed, or an address cannot be read and never was.
    """
    return _find(paths, options, [], unreadable)[0].folders


def fetch_models(
    paths: Sequence[str], options: LoaderOptions, unreadable: dict[str, str], findings: list[Finding]
) -> Mapping[str, list[str]]:
    """Do as `find_models`, and have every model here; one that could not be fetched has no folder.

    `findings` takes what there is to say.
    """
    found, mirrors = _find(paths, options, findings, unreadable)
    here: dict[str, str] = {}
    missing: dict[str, str] = {}
    _fetch(found.folders.values(), mirrors, findings, here, missing)
    return {
        name: [here.get(path, path) for path in folders if path not in missing]
        for name, folders in found.folders.items()
    }


def _find(
    paths: Sequence[str],
    options: LoaderOptions,
    findings: list[Finding],
    unreadable: dict[str, str] | None,
) -> tuple[FoundModels, Mapping[str, RepositoryFolder]]:
    """Find the models, and the folders of remote repositories, by path; `findings` takes what there is to say."""
    found: dict[str, dict[str, list[str]]] = {}
    mirrors: dict[str, RepositoryFolder] = {}
    for repository in dict.fromkeys(map(normalised, paths)):  # one that is named twice counts once
        try:
            folder, listed = _listed(repository, options.cache_dir, findings)
        except RepositoryError as error:
            if unreadable is None:
                raise
            unreadable[repository] = str(error)
            continue
        if is_remote(repository):
            mirrors[folder.path] = folder
        names = options.names.get(repository, {})
        for below in listed:
            present = found.setdefault(names.get(below, below), {}).setdefault(repository, [])
            present.append(os.path.join(folder.path, below))
    folders: dict[str, list[str]] = {}
    repositories: dict[str, str] = {}
    own_names: dict[str, str] = {}
    for name, by_repository in found.items():
        shared = options.namespacing and len(by_repository) > 1
        for repository, present in by_repository.items():
            known = identifier(name, repository) if shared else name
            repositories[known], own_names[known] = repository, name
            folders.setdefault(known, []).extend(present)
    return FoundModels(folders, repositories, own_names), mirrors


def _fetch(
    models: Iterable[Sequence[str]],
    mirrors: Mapping[str, RepositoryFolder],
    findings: list[Finding],
    here: dict[str, str],
    missing: dict[str, str],
) -> None:
    """Fetch those models, given by their folders, that are in one remote repository alone.

    `here` takes where they are now, `missing` the reason of each that cannot be had, both by the folder that was given.
    """
    wanted: dict[str, list[str]] = {}
    for folders in models:
        if len(folders) == 1 and (parent := os.path.dirname(folders[0])) in mirrors:
            wanted.setdefault(parent, []).append(os.path.basename(folders[0]))
    for parent, names in wanted.items():
        mirror = mirrors[parent]
        try:
            fetched = mirror.fetch(names)
        except StorageError as error:
            fetched = Fetched(dict.fromkeys(names, str(error)))
        findings += [Finding("warning", mirror.address, 1, 1, warning) for warning in fetched.warnings]
        for name in names:
            path = os.path.join(parent, name)
            if name in fetched.failures:
                missing[path] = fetched.failures[name]
            else:
                here[path] = os.path.realpath(path)


def choose_models(paths: Sequence[str], options: LoaderOptions, names: Sequence[str]) -> list[str]:
    """Return the models that names and patterns (`*`, `?`, `[…]`) stand for; raises as `find_models`.

    A name that is no pattern is returned whether or not there is such a model.
    """
    patterns = [name for name in names if _PATTERN & set(name)]
    present = find_models(paths, options) if patterns or options.namespacing else {}
    chosen: set[str] = set()
    for name in names:
        if name in patterns:
            called = {each: (options.namespacing and shared_name(each)) or each for each in present}
            chosen |= {each for each in present if fnmatchcase(called[each], name)}
        else:
            chosen |= set(meant_by(name, present, namespacing=options.namespacing) or [name])
    return sorted(chosen)


def _model_names(folder: RepositoryFolder, findings: list[Finding]) -> list[str]:
    """List the folders that may be models."""
    models = []
    config = os.path.join(folder.path, CONFIG_FILE)
    if os.path.isfile(config):
        findings.append(Finding("warning", config, 1, 1, "this folder is a model; the repository is the one above it"))
    for name, may_be_model in folder.models.items():
        if not may_be_model:
            path = os.path.join(folder.address, name)
            findings.append(Finding("warning", path, 1, 1, "no model, as it has no config.pbtxt; ignored"))
        elif not is_text(name):  # which no client could be told of
            read = sys.getfilesystemencoding()
            hint = "" if read == "utf-8" else f" as Python reads it here, which is {read} (PYTHONUTF8=1 changes that)"
            remark = f"folder {name!a} is no model, as its name is not UTF-8 text{hint}; ignored"
            findings.append(Finding("warning", folder.path, 1, 1, remark))
        else:
            models.append(name)
    return models


def _read(
    name: str,
    folders: Sequence[str],
    options: LoaderOptions,
    complete_model: ModelCompleter | None,
    override: Override | None,
) -> RepositoryModel:
    if len(folders) > 1:
        findings = tuple(Finding("error", folder, 1, 1, DUPLICATE_REASON) for folder in folders)
        return RepositoryModel(name, folders[0], None, (), findings, DUPLICATE_REASON)
    config = None if override is None else override.config
    return ModelReader(folders[0], options, complete_model, config, name).read()


def _judged(model: RepositoryModel, verdict: EnsembleVerdict) -> RepositoryModel:
    """Add what the graph of ensembles says to a model."""
    path = model.config_path
    positions = _positions(path) if verdict.faults or verdict.warnings else None

    def place(severity: str, fault: Fault) -> Finding:
        line, column = positions.position(fault.field) if positions else (1, 1)
        return Finding("error" if severity == "error" else "warning", path, line, column, fault.message)

    findings = (
        *model.findings,
        *(place("warning", fault) for fault in verdict.warnings),
        *(place("error", fault) for fault in verdict.faults),
    )
    if verdict.faults:
        return replace(model, packages=(), findings=findings, failure=verdict.faults[0].message)
    packages = tuple(replace(package, config=verdict.config) for package in model.packages)
    return replace(model, config=verdict.config, packages=packages, findings=findings)


def _as_stored(model: RepositoryModel, places: Mapping[str, str]) -> RepositoryModel:
    """Say of the model's folders in the cache at which addresses they are; nobody knows them by their names there."""

    def stored(text: str) -> str:
        for folder, address in places.items():
            text = text.replace(folder, address)
        return text

    findings = tuple(replace(each, path=stored(each.path), message=stored(each.message)) for each in model.findings)
    failure = model.failure and stored(model.failure)
    return replace(model, findings=findings, failure=failure, config_path=stored(model.config_path))


def _positions(path: str) -> FieldPositions | None:
    """Read the text again, which is cheaper than to keep the positions of every model."""
    try:
        with open(path, "rb") as file:
            return parse_config_text(file.read(), path).positions
    except OSError:
        return None
