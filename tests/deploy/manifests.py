"""Kubernetes manifests: each object against its schema, and what the objects say of each other.

The schemas come with a package; those of custom resources do not, so that a ServiceMonitor is only
held against the services that it is meant for.
"""

import pathlib

import kubernetes_validate
import yaml

# What the schemas do not have, and what each must have.
CUSTOM = {"ServiceMonitor": ["selector", "endpoints"]}
# The oldest version whose schema knows all that is used (a preStop that sleeps), and the newest.
VERSIONS = ["1.30", "1.37"]


def load(folder: pathlib.Path) -> list[dict]:
    """All objects of a folder's files."""
    files = sorted(folder.glob("*.yaml"))
    assert files, f"no manifests in {folder}"
    return [o for file in files for o in yaml.safe_load_all(file.read_text())]


def schemas(objects: list[dict]) -> int:
    """Holds each object against its schema, unknown keys refused; returns how many there were."""
    checked = 0
    for item in objects:
        kind = item["kind"]
        if kind in CUSTOM:
            missing = [key for key in CUSTOM[kind] if key not in item["spec"]]
            assert not missing, f"{kind} lacks {missing}"
            continue
        for version in VERSIONS:
            kubernetes_validate.validate(item, version, strict=True)
        checked += 1
    return checked


def rejects_a_mistake(objects: list[dict]) -> None:
    """A checker that refuses nothing proves nothing."""
    deployment = next(o for o in objects if o["kind"] == "Deployment")
    for key, value in [("replicas", "three"), ("replica", 3)]:
        bad = {**deployment, "spec": {**deployment["spec"], key: value}}
        try:
            kubernetes_validate.validate(bad, VERSIONS[0], strict=True)
        except kubernetes_validate.ValidationError:
            continue
        raise AssertionError(f"{key}: {value} is accepted")


def matches(selector: dict, labels: dict) -> bool:
    return bool(selector) and selector.items() <= labels.items()


def references(objects: list[dict]) -> None:
    """Names, labels and ports by which objects find each other."""
    of = lambda *kinds: [o for o in objects if o["kind"] in kinds]
    name = lambda o: o["metadata"]["name"]
    workloads = of("Deployment", "StatefulSet")
    pods = {name(o): o["spec"]["template"] for o in workloads}
    ports = lambda pod: {p["name"] for c in pod["spec"]["containers"] for p in c["ports"]}

    for o in workloads:
        assert matches(o["spec"]["selector"]["matchLabels"], pods[name(o)]["metadata"]["labels"])
        for container in pods[name(o)]["spec"]["containers"]:
            for probe in ["startupProbe", "readinessProbe", "livenessProbe"]:
                port = container.get(probe, {}).get("httpGet", {}).get("port")
                assert port is None or port in ports(pods[name(o)]), f"{name(o)} {probe}"
            mounted = {m["name"] for m in container.get("volumeMounts", [])}
            volumes = pods[name(o)]["spec"].get("volumes", [])
            claims = [c["metadata"] for c in o["spec"].get("volumeClaimTemplates", [])]
            assert mounted == {v["name"] for v in volumes + claims}, f"{name(o)} volumes"
    for o in of("Service"):
        selector = o["spec"]["selector"]
        found = [p for p in pods.values() if matches(selector, p["metadata"]["labels"])]
        assert len(found) == 1, f"service {name(o)} finds {len(found)} workloads"
        assert {p["targetPort"] for p in o["spec"]["ports"]} <= ports(found[0]), name(o)
    for o in of("StatefulSet"):
        service = next(s for s in of("Service") if name(s) == o["spec"]["serviceName"])
        assert service["spec"]["clusterIP"] == "None", "a StatefulSet's service is headless"
    for o in of("PodDisruptionBudget"):
        selector = o["spec"]["selector"]["matchLabels"]
        assert any(matches(selector, p["metadata"]["labels"]) for p in pods.values()), name(o)
    for o in of("NetworkPolicy"):
        selector = o["spec"]["podSelector"]["matchLabels"]
        pod = next(p for p in pods.values() if matches(selector, p["metadata"]["labels"]))
        assert {p["port"] for r in o["spec"]["ingress"] for p in r["ports"]} <= ports(pod), name(o)
    for o in of("ServiceMonitor"):
        selector = o["spec"]["selector"]["matchLabels"]
        found = [s for s in of("Service") if matches(selector, s["metadata"].get("labels", {}))]
        assert len(found) == 1, f"the ServiceMonitor finds {len(found)} services"
        named = {p["name"] for p in found[0]["spec"]["ports"]}
        assert {e["port"] for e in o["spec"]["endpoints"]} <= named
    role = of("Role")[0]["rules"]
    assert [sorted(rule["verbs"]) for rule in role] == [["list", "watch"]], "no more than it needs"
    account = pods["expedite"]["spec"]["serviceAccountName"]
    bound = of("RoleBinding")[0]
    assert bound["subjects"][0]["name"] == account == name(of("ServiceAccount")[0])
    assert bound["roleRef"]["name"] == name(of("Role")[0])
    container = pods["expedite"]["spec"]["containers"][0]
    resources = container["resources"]
    assert resources["requests"] == resources["limits"], "CPUs of its own need equal ones"
    assert resources["limits"]["cpu"].isdigit(), "and whole ones"


def check(folder: pathlib.Path) -> int:
    """All of it; the number of objects that have a schema."""
    objects = load(folder)
    checked = schemas(objects)
    rejects_a_mistake(objects)
    references(objects)
    return checked
