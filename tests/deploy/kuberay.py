"""What KubeRay's RayService may hold, as far as ours goes: written after its API reference (KubeRay 1.6, `ray.io/v1`)."""

from typing import Any

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_PARAMETERS = {"type": "object", "additionalProperties": {"type": "string"}}
_TEMPLATE = {"type": "object", "required": ["spec"]}
_SECRET_KEY = {
    "type": "object",
    "properties": {"name": _TEXT, "key": _TEXT, "optional": {"type": "boolean"}},
    "required": ["key"],
    "additionalProperties": False,
}


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_CREDENTIAL = _object((), value=_TEXT, valueFrom=_object((), secretKeyRef=_SECRET_KEY))
_RAY_CLUSTER = _object(
    ("headGroupSpec",),
    rayVersion=_TEXT,
    authOptions=_object((), mode={"enum": ["disabled", "token"]}, secretName=_TEXT),
    enableInTreeAutoscaling={"type": "boolean"},
    autoscalerOptions=_object(
        (),
        upscalingMode={"enum": ["Default", "Aggressive", "Conservative"]},
        idleTimeoutSeconds=_COUNT,
        image=_TEXT,
        imagePullPolicy=_TEXT,
        resources={"type": "object"},
        env={"type": "array"},
        envFrom={"type": "array"},
        volumeMounts={"type": "array"},
        securityContext={"type": "object"},
        version={"enum": ["v1", "v2"]},
    ),
    gcsFaultToleranceOptions=_object(
        ("redisAddress",),
        redisAddress=_TEXT,
        redisUsername=_CREDENTIAL,
        redisPassword=_CREDENTIAL,
        externalStorageNamespace=_TEXT,
    ),
    headGroupSpec=_object(
        ("template",),
        serviceType=_TEXT,
        headService={"type": "object"},
        enableIngress={"type": "boolean"},
        rayStartParams=_PARAMETERS,
        template=_TEMPLATE,
    ),
    workerGroupSpecs={
        "type": "array",
        "items": _object(
            ("groupName", "template", "minReplicas", "maxReplicas"),
            groupName=_TEXT,
            replicas=_COUNT,
            minReplicas=_COUNT,
            maxReplicas=_COUNT,
            numOfHosts=_COUNT,
            idleTimeoutSeconds=_COUNT,
            suspend={"type": "boolean"},
            rayStartParams=_PARAMETERS,
            template=_TEMPLATE,
            scaleStrategy={"type": "object"},
        ),
    },
    headServiceAnnotations=_PARAMETERS,
    suspend={"type": "boolean"},
)
RAY_SERVICE = _object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayService"},
    metadata={"type": "object", "required": ["name"]},
    spec=_object(
        ("rayClusterConfig",),
        serveConfigV2=_TEXT,
        rayClusterConfig=_RAY_CLUSTER,
        serveService={"type": "object"},
        excludeHeadPodFromServeSvc={"type": "boolean"},
        upgradeStrategy={"type": "object"},
        rayClusterDeletionDelaySeconds=_COUNT,
    ),
)
