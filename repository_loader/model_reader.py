"""Reads one model's folder: configuration, versions, files, completion, normalisation, validation."""

import os
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository_loader.backend_traits import PYTHON_RUNTIME, traits_of
from repository_loader.checksum_agent import check_digests
from repository_loader.completion import Completer, CompletionError, ModelCompleter, complete
from repository_loader.config_text import MAX_CONFIG_BYTES, ConfigText, empty_config_text, parse_config_text
from repository_loader.field_check import ignored_fields
from repository_loader.findings import Fault, Finding
from repository_loader.fingerprint import Fingerprint, take_fingerprint
from repository_loader.loadability import check_backend, check_loadable, check_model_file, missing_packages
from repository_loader.model_files import (
    ModelFileError,
    backend_needs_file,
    check_content,
    default_file,
    exists_for_some_device,
    fill_backend,
    inside,
    is_ensemble,
    leaves_folder,
)
from repository_loader.normalisation import normalise
from repository_loader.onnx_graph import ORT_SUFFIX, OnnxFileError, OnnxGraph, read_onnx_graph
from repository_loader.package import ModelPackage
from repository_loader.parameters import ignored_parameters
from repository_loader.python_based_backend import choose_python_based_backend
from repository_loader.side_files import check_side_files
from repository_loader.snapshot import LoaderOptions, RepositoryModel
from repository_loader.storage.model_source import source_of
from repository_loader.subfolders import CONFIG_FILE
from repository_loader.validation import check_config, check_name, check_platform
from repository_loader.version_policy_agent import apply_version_policy
from repository_loader.versions import NoVersionError, find_versions, missing_versions, select_versions

_DEFAULT_MAX_BATCH_SIZE = 4
"""Where no `--backend-config` says another, as in Triton."""


class _Failed(Exception):
    """The model cannot be loaded; the reason is a fault, its findings are already noted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ModelReader:
    """Reads the folder of one model into a `RepositoryModel`. One use, one thread.

    With a `name` other than its folder's the model is called so, whatever its configuration says.
    """

    def __init__(
        self,
        model_path: str,
        options: LoaderOptions,
        complete_model: ModelCompleter | None,
        override: ModelConfig | None,
        name: str,
    ) -> None:
        self._path = model_path
        self._name = name
        self._is_called_otherwise = name != os.path.basename(model_path)
        self._options = options
        self._complete_model = complete_model
        self._override = override
        self._findings: list[Finding] = []
        self._warned: set[Finding] = set()
        self._fingerprint = Fingerprint()
        self._config: ModelConfig | None = None
        self._version: int | None = None
        self._config_path = os.path.join(model_path, CONFIG_FILE)

    def read(self) -> RepositoryModel:
        """Read everything; never raises."""
        packages: tuple[ModelPackage, ...] = ()
        failure = None
        # Taken first: what changes while it is read has changed since.
        self._fingerprint = take_fingerprint(self._path)
        try:
            packages = self._read()
        except _Failed as failed:
            failure = failed.reason
        except OSError as error:
            failure = f"{self._shown(error.filename)} of model '{self._name}' cannot be read: {error.strerror}"
        except Exception as error:  # one model must never hide the others
            failure = f"reading model '{self._name}' failed: {type(error).__name__}: {error}"
        if failure is not None and not any(finding.severity == "error" for finding in self._findings):
            self._findings.append(Finding("error", self._path, 1, 1, failure))
        findings = tuple(self._findings)
        return RepositoryModel(
            self._name,
            self._path,
            self._config,
            packages,
            findings,
            failure,
            self._config_path,
            self._fingerprint.whole,
            failed_version=self._version if failure is not None else None,
        )

    def _shown(self, path: object) -> str:
        """Return what could not be read as a message names it."""
        inner = os.path.relpath(path, self._path) if isinstance(path, str) else "."
        return "the folder" if inner == "." or leaves_folder(inner) else f"'{inner}'"

    def _read(self) -> tuple[ModelPackage, ...]:
        wrong_name = check_name(self._name)
        if wrong_name is not None:
            raise _Failed(wrong_name)
        if self._fingerprint.problem:
            raise _Failed(f"the files of model '{self._name}' are not read: {self._fingerprint.problem}")
        os.stat(os.path.join(self._path, "."))  # raises for a folder that is closed, of which a file would be blamed
        text = self._read_config()
        config = text.config
        assert config is not None
        self._config = config
        self._check_own_name(text, config)
        for remark in apply_version_policy(config):
            self._warn(text, remark)
        available = self._versions(text, config)
        try:
            policy = config.version_policy if config.HasField("version_policy") else None
            selected = select_versions(policy, available, self._name)
        except NoVersionError as error:
            if not available:
                self._say_why_no_version()
            self._fail(text, [Fault("version_policy", str(error))])
        for number in missing_versions(config.version_policy, available):
            self._warn(text, Fault("version_policy", f"version {number} is specified for '{self._name}' but not found"))
        if not is_ensemble(config):
            for number in selected:  # a file in a folder that is closed would be taken for a missing one
                os.stat(os.path.join(self._version_path(number), "."))
        try:
            fill_backend(config, [self._version_path(number) for number in available])
        except ModelFileError as error:
            self._fail(text, [Fault("", str(error))])
        self._fail(text, check_digests(config, self._path))
        packages = tuple(self._package(text, config, number) for number in selected)
        self._config = packages[-1].config
        return packages

    def _say_why_no_version(self) -> None:
        models = sorted(
            name for name in os.listdir(self._path) if os.path.isfile(os.path.join(self._path, name, CONFIG_FILE))
        )
        if models:
            remark = (
                f"'{models[0]}' in this folder is a model, so the folder may be a repository; it is read as a model"
            )
        else:
            remark = "there is no version folder here: a number, as '1', with the model's files in it"
        self._findings.append(Finding("warning", self._path, 1, 1, remark))

    def _read_config(self) -> ConfigText:
        path = self._config_path
        if self._override is not None:
            copy = ModelConfig.FromString(self._override.SerializeToString())
            return replace(empty_config_text(path), config=copy)
        if self._options.model_config_name:
            custom = os.path.join(self._path, "configs", f"{self._options.model_config_name}.pbtxt")
            path = self._config_path = custom if os.path.isfile(custom) else path
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_CONFIG_BYTES + 1)
        except FileNotFoundError:
            if self._options.disable_auto_complete_config:
                reason = f"failed to open text file for read {path}: No such file or directory"
                raise _Failed(reason) from None
            self._say_what_may_be_meant()
            return empty_config_text(path)
        text = parse_config_text(data, path)
        self._findings.extend(text.findings)
        self._warned.update(text.findings)
        if text.config is None:
            error = text.findings[-1]
            raise _Failed(f"failed to read text proto from {path}:{error.line}:{error.column}: {error.message}")
        return text

    def _say_what_may_be_meant(self) -> None:
        """Warn of a configuration with another name or place; of one that links to nothing, `find_versions` warns."""
        for name in sorted(os.listdir(self._path)):
            if name != CONFIG_FILE and get_close_matches(name.lower(), [CONFIG_FILE], cutoff=0.8):
                path = os.path.join(self._path, name)
                self._findings.append(
                    Finding("warning", path, 1, 1, f"not read: a configuration is called {CONFIG_FILE}")
                )
        for number in find_versions(self._path).numbers:
            path = os.path.join(self._path, str(number), CONFIG_FILE)
            if os.path.isfile(path):
                message = "not read: a configuration stands beside its model's version folders, not in one"
                self._findings.append(Finding("warning", path, 1, 1, message))

    def _check_own_name(self, text: ConfigText, config: ModelConfig) -> None:
        if config.name and config.name != self._name and not self._is_called_otherwise:
            message = (
                f"unexpected directory name '{self._name}' for model '{config.name}', "
                "directory name must equal model name"
            )
            self._fail(text, [Fault("name", message)])
        config.name = self._name

    def _versions(self, text: ConfigText, config: ModelConfig) -> tuple[int, ...]:
        folders = find_versions(self._path)
        for warning in folders.warnings:
            self._findings.append(Finding("warning", self._path, 1, 1, warning))
        if not folders.numbers and is_ensemble(config):
            self._warn(text, Fault("", f"ensemble '{self._name}' has no version directory; it is served as version 1"))
            return (1,)
        return folders.numbers

    def _version_path(self, number: int) -> str:
        return os.path.join(self._path, str(number))

    def _package(self, text: ConfigText, shared: ModelConfig, number: int) -> ModelPackage:
        """Complete, normalise and check one version; each has a configuration of its own, as its file may differ."""
        self._version = number
        config = ModelConfig.FromString(shared.SerializeToString())
        version_path = self._version_path(number)
        file_path, graph = ("", None) if is_ensemble(config) else self._model_file(text, config, version_path)
        options = self._options
        if not options.disable_auto_complete_config:
            completer = Completer(self._complete_model, self._path, version_path, file_path)
            try:
                warnings = complete(config, graph, self._default_max_batch_size(config), completer)
            except CompletionError as error:
                self._fail(text, [Fault("", str(error))])
            for warning in warnings:
                self._warn(text, Fault("max_batch_size", warning))
        for ignored in (*ignored_fields(config), *ignored_parameters(config), *missing_packages(config)):
            self._warn(text, ignored)
        gpu_ids = range(options.gpu_count)
        for remark in normalise(config, gpu_ids, options.kind_gpu_fallback_to_cpu):
            self._warn(text, remark)
        self._config = config
        self._fail(text, [*check_config(config, gpu_ids), *check_side_files(config, self._path)])
        settings = {**options.backend_settings.get("", {}), **options.backend_settings.get(config.backend, {})}
        self._fail(text, [*check_loadable(config, settings), *check_model_file(config, file_path, graph)])
        revision, source = self._fingerprint.of_version(number), source_of(self._path)
        if config.runtime == PYTHON_RUNTIME:
            revision += f"+{take_fingerprint(os.path.dirname(file_path)).whole}"
        return ModelPackage(self._name, number, config, self._path, version_path, file_path, settings, source, revision)

    def _model_file(self, text: ConfigText, config: ModelConfig, version_path: str) -> tuple[str, OnnxGraph | None]:
        """Return the model file, and what is in it if it is ONNX; every ONNX file is read, as each may be loaded.

        What is in ONNX Runtime's own format, that alone can tell.
        """
        graph = None
        try:
            shared = choose_python_based_backend(config, self._path, self._options.backend_directory)
        except ModelFileError as error:
            self._fail(text, [Fault("runtime", str(error))])
        if shared:
            return shared, None
        self._fail(text, check_platform(config))
        self._fail(text, check_backend(config))
        try:
            name, warning = default_file(config, version_path)
            path = inside(version_path, name, self._name)
            if warning is not None:
                self._warn(text, Fault("default_model_filename", warning))
                config.default_model_filename = name
            if backend_needs_file(config) and not exists_for_some_device(config, version_path):
                group = config.instance_group[0].name if config.instance_group else ""
                link = ": it is a link to nothing" if os.path.islink(path) else ""
                raise ModelFileError(f"unable to find '{path}' for model instance '{group or self._name}_0'{link}")
            check_content(path, self._path)
            if traits_of(config).name == "onnxruntime":
                files = [inside(version_path, other, self._name) for other in config.cc_model_filenames.values()]
                for file in filter(os.path.exists, (*files, path)):
                    graph = None if file.endswith(ORT_SUFFIX) else read_onnx_graph(file)
        except ModelFileError as error:
            self._fail(text, [Fault("default_model_filename", str(error))])
        except OnnxFileError as error:
            self._fail(text, [Fault("default_model_filename", f"version {self._version}: {error}")])
        return path, graph

    def _default_max_batch_size(self, config: ModelConfig) -> int:
        for backend in (config.backend, ""):
            given = self._options.backend_settings.get(backend, {}).get("default-max-batch-size", "")
            if given.isdigit():
                return int(given)
        return _DEFAULT_MAX_BATCH_SIZE

    def _warn(self, text: ConfigText, fault: Fault) -> None:
        finding = text.warning(fault)
        if finding not in self._warned:  # versions repeat what is true for all of them
            self._warned.add(finding)
            self._findings.append(finding)

    def _fail(self, text: ConfigText, faults: Iterable[Fault]) -> None:
        """Note the faults; if there is one, give up."""
        reasons = list(faults)
        self._findings.extend(text.error(fault) for fault in reasons)
        if reasons:
            raise _Failed(reasons[0].message)
