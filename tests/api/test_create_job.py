"""Creating a job: what is accepted, what is stored, and what is refused with which field and limit."""

import base64
import copy
from typing import Any

import pytest
from sqlmodel import select

from domain.roles import Role
from domain.spec import JobSpec, Workload
from store.tables import IdempotencyKey, InboxRow, Job, JobEvent, Project
from tests.api.conftest import JOB, Api
from tests.support.factory import Factory

CANARY = "canary-7f3a-secret"


def changed(**changes: Any) -> dict[str, Any]:
    """The smallest request, with values at dotted paths (`__` for the dot) set, or removed where the value is ..."""
    body = copy.deepcopy(JOB)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = body
        for parent in parents:
            place = place.setdefault(parent, {})
        if value is ...:
            place.pop(last, None)
        else:
            place[last] = value
    return body


def script(data: bytes) -> str:
    return base64.b64encode(data).decode()


def with_script(encoded: Any) -> dict[str, Any]:
    return changed(container__command=..., container__script_b64=encoded)


GPU = {"accelerator": "nvidia-h100-80gb", "gpu_count": 8, "ephemeral_disk_gb": 500}
REGISTRY = {"username": "robot", "password": CANARY}
ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPXjAT7RzM2DvV7JhV8CmgGFVR4mdxpKk6h2pCuVtuSF you@example.com"


def stored(api: Api, job_id: str) -> tuple[Job, JobSpec, Workload]:
    job = api.services.db.run_read(lambda s: s.get_one(Job, job_id))
    opened = api.services.vault.open(job.workload_sealed, f"workload:{job.id}")
    return job, JobSpec.model_validate(job.spec), Workload.model_validate_json(opened)


class TestAccepted:
    def test_the_answer_is_the_job_as_the_seed_shows_it(self, api: Api) -> None:
        answer = api.create(changed(name="n", limits={"max_runtime_hours": 2, "max_cost_usd": 5.5}))
        assert answer.status_code == 201
        job = answer.json()
        assert job.pop("id").startswith("job_")
        assert job.pop("created_at") == "2026-03-01T12:00:00Z"
        assert job == {
            "name": "n",
            "state": "requested",
            "reason": None,
            "compute": JOB["compute"],
            "accrued_usd": 0,
            "limits": {"max_runtime_hours": 2, "max_cost_usd": 5.5},
            "endpoints": [],
            "started_at": None,
            "terminal_at": None,
            "project": "default",
            "labels": {},
            "kind": "task",
            "attempts": {"total": 0, "rejected": 0, "user_failure": 0, "preemption": 0, "infrastructure": 0},
        }

    def test_one_transaction_stores_job_event_key_and_the_start_of_the_workflow(self, api: Api) -> None:
        job_id = api.create(key="mine").json()["id"]

        def rows(session: Any) -> list[Any]:
            return [session.exec(select(table)).all() for table in (Job, JobEvent, IdempotencyKey, InboxRow)]

        [job], [event], [key], [row] = api.services.db.run_read(rows)
        assert (job.id, job.key_id, job.org_id) == (job_id, api.key.key_id, api.key.org_id)
        assert (event.job_id, event.type) == (job_id, "job_created")
        assert (key.key, key.resource_id) == ("mine", job_id)
        assert (row.job_id, row.kind, row.delivered_at) == (job_id, "start", None)

    def test_command_and_env_are_sealed_and_never_echoed(self, api: Api) -> None:
        body = changed(container__command=["run", CANARY], container__env={"TOKEN": CANARY, "EMPTY": ""})
        answer = api.create(body)
        assert CANARY not in answer.text
        job, spec, workload = stored(api, answer.json()["id"])
        assert CANARY not in str(job.spec)
        assert CANARY.encode() not in job.workload_sealed
        assert workload.argv == ("run", CANARY)
        assert workload.env == {"TOKEN": CANARY, "EMPTY": ""}
        assert spec.image == "registry.example/app:1"

    def test_a_script_is_decoded_and_normalised(self, api: Api) -> None:
        answer = api.create(with_script(script(b"\xef\xbb\xbfecho hi\r\nexit 0\r\n")))
        _, _, workload = stored(api, answer.json()["id"])
        assert (workload.argv, workload.script) == (None, "echo hi\nexit 0\n")

    def test_base64_with_line_breaks_is_a_script_too(self, api: Api) -> None:
        answer = api.create(with_script(base64.encodebytes(b"echo hi; " * 40).decode()))
        _, _, workload = stored(api, answer.json()["id"])
        assert workload.script == "echo hi; " * 40

    def test_limits_keep_their_exact_decimal_digits(self, api: Api) -> None:
        raw = api.client.post(
            "/jobs",
            content=b'{"compute":{"accelerator":"cpu-general","gpu_count":0,"vcpu_count":1,"ephemeral_disk_gb":1},'
            b'"container":{"image":"a","command":["x"]},"limits":{"max_cost_usd":0.1,"max_runtime_hours":1e-3}}',
            headers={"Idempotency-Key": "k"},
        )
        assert b'"max_cost_usd":0.1' in raw.content
        _, spec, _ = stored(api, raw.json()["id"])
        assert (str(spec.limits.max_cost_usd), spec.limits.max_runtime_hours.__format__("f")) == ("0.1", "0.001")

    def test_the_smallest_limits_are_limits(self, api: Api) -> None:
        answer = api.create(changed(limits={"max_cost_usd": 1e-9, "max_runtime_hours": 1e-9}))
        assert answer.status_code == 201
        assert answer.json()["limits"] == {"max_cost_usd": 1e-9, "max_runtime_hours": 1e-9}

    @pytest.mark.parametrize("limits", [None, {}, {"max_cost_usd": None}])
    def test_absent_or_null_is_no_limit(self, api: Api, limits: Any) -> None:
        answer = api.create(changed(limits=limits))
        assert answer.json()["limits"] == {}

    def test_a_registry_credential_is_sealed_apart(self, api: Api) -> None:
        answer = api.create(changed(container__registry_credential=REGISTRY))
        assert CANARY not in answer.text
        job, _, _ = stored(api, answer.json()["id"])
        assert job.registry_sealed is not None
        assert CANARY in api.services.vault.open(job.registry_sealed, f"registry:{job.id}").decode()

    def test_extensions_are_stored_and_shown(self, api: Api) -> None:
        placement = {
            "providers": ["local"],
            "strategy": "lowest_cost",
            "spot": "allow",
            "max_price_usd_hr": 2.5,
            "regions": ["eu-1"],
            "zones": [],
            "capacity_wait_seconds": 60,
        }
        answer = api.create(
            changed(
                kind="sft",
                labels={"team": "nlp", "x/y": "ü 🚀"},
                project="default",
                placement=placement,
                retry={"on_preemption": True, "max_attempts": 2},
            )
        )
        job = answer.json()
        assert (job["kind"], job["labels"], job["project"]) == ("sft", {"team": "nlp", "x/y": "ü 🚀"}, "default")
        _, spec, _ = stored(api, job["id"])
        assert (str(spec.placement.max_price_usd_hr), spec.placement.regions) == ("2.5", ("eu-1",))
        assert (spec.retry.on_preemption, spec.retry.max_attempts) == (True, 2)

    def test_the_end_user_is_stored(self, api: Api) -> None:
        headers = {b"Idempotency-Key": b"k", b"X-On-Behalf-Of": "Zoë".encode()}
        answer = api.client.post("/jobs", json=JOB, headers=headers)
        job, _, _ = stored(api, answer.json()["id"])
        assert job.on_behalf_of == "Zoë"

    @pytest.mark.parametrize(
        "body",
        [
            changed(compute=GPU),
            changed(compute={**GPU, "interconnect": "nvlink", "instance_count": 64, "vcpu_count": 208}),
            changed(name="../../etc/passwd <script>'; DROP TABLE job;-- 👩‍👩‍👧"),
            changed(name="x" * 128),
            changed(container__command=["x", "", "-", "'\"$`;\n", "=", "🚀"] + ["a"] * 250),
            changed(container__env={f"N{i}": "v" for i in range(256)}),
            changed(container__env={"A": "x" * (131_071 - 2)}),
            changed(container__ports=[{"name": "web", "container_port": 65535, "protocol": "http"}]),
            changed(access={"ssh_public_key": ED25519 + "\r\n"}),
            changed(volumes=[], labels={}, placement=None, access={}, retry=None, name=None),
            with_script(script(b"#" * (5 * 1024 * 1024))),
        ],
        ids=range(11),
    )
    def test_what_is_within_the_bounds_is_accepted(self, api: Api, body: dict[str, Any]) -> None:
        answer = api.create(body)
        assert answer.status_code == 201, answer.text


REFUSED: list[tuple[str, dict[str, Any], str, Any]] = [
    ("no compute", changed(compute=...), "compute", None),
    ("compute is no object", changed(compute=[]), "compute", None),
    ("unknown field", changed(surprise=1), "surprise", None),
    ("unknown nested field", changed(container__surprise=1), "container.surprise", None),
    ("a misspelt field", changed(compute__accelerator=..., compute__acelerator="x"), "compute.acelerator", None),
    ("a service block", changed(service={}), "service", None),
    ("both command and script", changed(container__script_b64=script(b"x")), "container", None),
    ("neither command nor script", changed(container__command=...), "container", None),
    ("an empty argv", changed(container__command=[]), "container.command", None),
    ("an empty program", changed(container__command=["", "x"]), "container.command", None),
    ("a command that is a string", changed(container__command="echo hi"), "container.command", None),
    ("257 arguments", changed(container__command=["x"] * 257), "container.command", 256),
    ("arguments of 64 KiB", changed(container__command=["x" * 65536]), "container.command", 65536),
    ("bad base64", with_script("not base64!"), "container.script_b64", None),
    ("base64 without padding", with_script("ZQ"), "container.script_b64", None),
    ("an empty script", with_script(""), "container.script_b64", None),
    ("a script with NUL", with_script(script(b"a\0b")), "container.script_b64", None),
    ("a script that is not UTF-8", with_script(script(b"\xff\xfe")), "container.script_b64", None),
    ("a script over 5 MiB", with_script(script(b"x" * (5 * 1024 * 1024 + 1))), "container.script_b64", 5242880),
    ("NUL in a name", changed(name="a\0b"), "name", None),
    ("NUL in an env value", changed(container__env={"A": "a\0b"}), "container.env.A", None),
    ("a line break in a name", changed(name="a\nb"), "name", None),
    ("an escape sequence in a name", changed(name="\x1b[31m"), "name", None),
    ("a direction override in a name", changed(name="a\u202eb"), "name", None),
    ("an empty name", changed(name=""), "name", 1),
    ("a name of 129 characters", changed(name="x" * 129), "name", 128),
    ("a name that is a number", changed(name=5), "name", None),
    ("an env name with =", changed(container__env={"A=B": "x"}), "container.env.A=B", None),
    ("an env name that begins with a digit", changed(container__env={"1A": "x"}), "container.env.1A", None),
    ("an env name of 129", changed(container__env={"A" * 129: "x"}), "container.env." + "A" * 64, 128),
    ("an env value that is a number", changed(container__env={"A": 1}), "container.env.A", None),
    ("a reserved MKA1_", changed(container__env={"MKA1_X": "x"}), "container.env.MKA1_X", None),
    ("a reserved HEADRACE_", changed(container__env={"HEADRACE_": "x"}), "container.env.HEADRACE_", None),
    ("HF_ENDPOINT", changed(container__env={"HF_ENDPOINT": "x"}), "container.env.HF_ENDPOINT", None),
    (
        "HF_ENDPOINT from a secret",
        changed(container__secret_env={"HF_ENDPOINT": {"secret_id": "sec_1", "key": "k"}}),
        "container.secret_env.HF_ENDPOINT",
        None,
    ),
    (
        "a reserved name from a secret",
        changed(container__secret_env={"MKA1_X": {"secret_id": "sec_1", "key": "k"}}),
        "container.secret_env.MKA1_X",
        None,
    ),
    (
        "one name in both env and secret_env",
        changed(container__env={"A": "x"}, container__secret_env={"A": {"secret_id": "sec_1", "key": "k"}}),
        "container.secret_env.A",
        None,
    ),
    ("257 env names", changed(container__env={f"N{i}": "" for i in range(257)}), "container.env", 256),
    ("a crowd of arguments", changed(container__command=[0] * 50_000), "container.command", 256),
    ("a crowd of variables", changed(container__env={f"{i}": 0 for i in range(50_000)}), "container.env", 256),
    (
        "a crowd of secret variables",
        changed(container__secret_env={f"{i}": 0 for i in range(50_000)}),
        "container.secret_env",
        256,
    ),
    ("a crowd of labels", changed(labels={f" {i}": 0 for i in range(50_000)}), "labels", 64),
    ("a crowd of unknown fields", changed(**{f"x{i}": 0 for i in range(50_000)}), "body", 64),
    ("a crowd of unknown fields inside", changed(compute={f"x{i}": 0 for i in range(50_000)}), "compute", 64),
    ("a variable of 131,072 bytes", changed(container__env={"A": "x" * 131_070}), "container.env.A", 131_071),
    (
        "an environment over 1 MiB",
        changed(container__env={f"N{i}": "x" * 131_000 for i in range(9)}),
        "container.env",
        1048576,
    ),
    ("an image with a scheme", changed(container__image="https://registry.example/x"), "container.image", None),
    ("an upper-case image", changed(container__image="registry.example/App"), "container.image", None),
    ("an empty image", changed(container__image=""), "container.image", None),
    ("an unknown accelerator", changed(compute={**GPU, "accelerator": "tpu"}), "compute.accelerator", None),
    ("9 GPUs", changed(compute={**GPU, "gpu_count": 9}), "compute.gpu_count", 8),
    ("0 GPUs of a GPU class", changed(compute={**GPU, "gpu_count": 0}), "compute.gpu_count", [1, 2, 3, 4, 5, 6, 7, 8]),
    (
        "a count that is not offered",
        changed(compute={**GPU, "accelerator": "nvidia-b200-192gb", "gpu_count": 3}),
        "compute.gpu_count",
        [1, 2, 4, 8],
    ),
    ("GPUs of a CPU class", changed(compute__gpu_count=1), "compute.gpu_count", 0),
    ("a CPU class without vcpu_count", changed(compute__vcpu_count=...), "compute.vcpu_count", None),
    ("too many vCPUs", changed(compute__vcpu_count=129), "compute.vcpu_count", {"min": 1, "max": 128}),
    ("an interconnect of CPUs", changed(compute__interconnect="pcie"), "compute.interconnect", None),
    (
        "an interconnect that the GPU lacks",
        changed(compute={**GPU, "interconnect": "infinity_fabric"}),
        "compute.interconnect",
        ["pcie", "nvlink"],
    ),
    ("an unknown interconnect", changed(compute={**GPU, "interconnect": "smoke"}), "compute.interconnect", None),
    ("no disk", changed(compute__ephemeral_disk_gb=...), "compute.ephemeral_disk_gb", None),
    ("a disk of 0", changed(compute__ephemeral_disk_gb=0), "compute.ephemeral_disk_gb", 1),
    ("a disk of 2**63", changed(compute__ephemeral_disk_gb=2**63), "compute.ephemeral_disk_gb", 65536),
    ("a disk of 1.5", changed(compute__ephemeral_disk_gb=1.5), "compute.ephemeral_disk_gb", None),
    ("a disk of true", changed(compute__ephemeral_disk_gb=True), "compute.ephemeral_disk_gb", None),
    ("a disk in a string", changed(compute__ephemeral_disk_gb="10"), "compute.ephemeral_disk_gb", None),
    ("0 instances", changed(compute__instance_count=0), "compute.instance_count", 1),
    ("65 instances", changed(compute__instance_count=65), "compute.instance_count", 64),
    ("a cost limit of 0", changed(limits__max_cost_usd=0), "limits.max_cost_usd", 0),
    ("a cost limit of -0.0", changed(limits__max_cost_usd=-0.0), "limits.max_cost_usd", 0),
    ("a runtime of -0.0", changed(limits__max_runtime_hours=-0.0), "limits.max_runtime_hours", 0),
    ("a negative cost limit", changed(limits__max_cost_usd=-1), "limits.max_cost_usd", 0),
    ("a runtime of 0", changed(limits__max_runtime_hours=0), "limits.max_runtime_hours", 0),
    ("a runtime of 2**63", changed(limits__max_runtime_hours=2**63), "limits.max_runtime_hours", "100000"),
    ("a cost limit of 2**63", changed(limits__max_cost_usd=2**63), "limits.max_cost_usd", "1000000000"),
    ("a cost limit in a string", changed(limits__max_cost_usd="5"), "limits.max_cost_usd", None),
    ("a cost limit of true", changed(limits__max_cost_usd=True), "limits.max_cost_usd", None),
    (
        "17 ports",
        changed(container__ports=[{"name": f"p{i}", "container_port": i + 1, "protocol": "tcp"} for i in range(17)]),
        "container.ports",
        16,
    ),
    (
        "two ports of one name",
        changed(
            container__ports=[{"name": "p", "container_port": port, "protocol": "tcp"} for port in (80, 81)],
        ),
        "container.ports.1.name",
        None,
    ),
    (
        "port 65,536",
        changed(container__ports=[{"name": "p", "container_port": 65536, "protocol": "tcp"}]),
        "container.ports.0.container_port",
        65535,
    ),
    (
        "an unknown protocol",
        changed(container__ports=[{"name": "p", "container_port": 1, "protocol": "udp"}]),
        "container.ports.0.protocol",
        None,
    ),
    ("65 labels", changed(labels={f"l{i}": "" for i in range(65)}), "labels", 64),
    ("a label with a line break", changed(labels={"a": "x\ny"}), "labels.a", None),
    ("an unknown kind", changed(kind="banana"), "kind", None),
    ("an unknown strategy", changed(placement__strategy="random"), "placement.strategy", None),
    ("an unknown project", changed(project="elsewhere"), "project", None),
    ("a project with hostile characters", changed(project="'; --"), "project", None),
    ("volumes", changed(volumes=[{"volume_id": "vol_1", "mount_path": "/data"}]), "volumes", None),
    (
        "both pull credentials",
        changed(container__registry_credential=REGISTRY, container__image_pull_secret="sec_1"),
        "container",
        None,
    ),
    (
        "a credential for the default registry",
        changed(container__image="app:1", container__registry_credential=REGISTRY),
        "container.image",
        None,
    ),
    (
        "a user name with a colon",
        changed(container__registry_credential={**REGISTRY, "username": "a:b"}),
        "container.registry_credential.username",
        None,
    ),
    ("an options prefix", changed(access__ssh_public_key=f'command="x" {ED25519}'), "access.ssh_public_key", None),
]


class TestRefused:
    @pytest.mark.parametrize(
        ("body", "field", "limit"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
    )
    def test_the_field_and_the_limit_are_named(self, api: Api, body: Any, field: str, limit: Any) -> None:
        answer = api.create(body)
        assert answer.status_code == 422, answer.text
        error = answer.json()["error"]
        assert error["code"] == "invalid_request"
        assert error["details"]["field"] == field
        assert error["details"].get("limit") == limit
        assert api.get("/jobs").json()["total"] == 0

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
    def test_a_number_that_json_does_not_have_is_refused(self, api: Api, number: str) -> None:
        body = f'{{"limits": {{"max_cost_usd": {number}}}}}'
        answer = api.client.post("/jobs", content=body, headers={"Idempotency-Key": "k"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")

    @pytest.mark.parametrize("number", ["1e999", "1e999999999", "1e-999999999", "0." + "0" * 50 + "1"])
    def test_a_number_out_of_all_bounds_is_refused_quickly(self, api: Api, number: str) -> None:
        body = (
            '{"compute":{"accelerator":"cpu-general","gpu_count":0,"vcpu_count":1,"ephemeral_disk_gb":1},'
            f'"container":{{"image":"a","command":["x"]}},"limits":{{"max_cost_usd":{number}}}}}'
        )
        answer = api.client.post("/jobs", content=body, headers={"Idempotency-Key": "k"}, timeout=2)
        assert answer.status_code in {400, 422}
        assert answer.json()["error"]["code"] in {"invalid_json", "invalid_request"}

    @pytest.mark.parametrize("body", ["[]", '"text"', "5", "null", "true"])
    def test_a_body_that_is_no_object_is_refused(self, api: Api, body: Any) -> None:
        answer = api.client.post("/jobs", content=body, headers={"Idempotency-Key": "k"})
        assert (answer.status_code, answer.json()["error"]["details"]["field"]) == (422, "body")

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            (
                changed(container__secret_env={"T": {"secret_id": "sec_1", "key": "k"}}),
                "container.secret_env.T.secret_id",
            ),
            (changed(container__image_pull_secret="sec_1"), "container.image_pull_secret"),
        ],
    )
    def test_a_secret_that_does_not_exist_is_named(self, api: Api, body: Any, field: str) -> None:
        answer = api.create(body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "secret_not_found")
        assert answer.json()["error"]["details"]["field"] == field

    @pytest.mark.parametrize(
        "body",
        [
            changed(container__registry_credential={"username": 1, "password": CANARY}),
            changed(container__registry_credential={"username": "u", "password": CANARY, "more": 1}),
            changed(container__registry_credential={"username": "u", "password": [CANARY]}),
            changed(container__registry_credential={"username": "u", "password": CANARY + "\n"}),
            changed(container__registry_credential=CANARY),
            changed(container__env={"A": [CANARY]}),
            changed(container__env=CANARY),
            changed(container__command=[CANARY, 5]),
            changed(container__command={"x": CANARY}),
            with_script(CANARY + "!"),
            changed(access={"ssh_public_key": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{CANARY}\n"}),
            changed(container__image=f"https://user:{CANARY}@registry.example/x"),
            changed(compute={**GPU, "accelerator": CANARY}),
        ],
        ids=range(13),
    )
    def test_no_refusal_echoes_a_value(self, api: Api, body: Any) -> None:
        answer = api.create(body)
        assert answer.status_code == 422
        assert CANARY not in answer.text

    def test_several_problems_are_told_at_once(self, api: Api) -> None:
        error = api.create(changed(name=5, kind="banana")).json()["error"]
        assert [problem["field"] for problem in error["details"]["problems"]] == ["name", "kind"]


class TestWhoMay:
    def test_a_viewer_may_not(self, api: Api, factory: Factory) -> None:
        viewer = api.with_token(factory.key(role=Role.VIEWER).token)
        answer = viewer.post("/jobs", json=JOB, headers={"Idempotency-Key": "k"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")

    def test_an_organization_that_is_not_enabled_may_not(self, api: Api, factory: Factory) -> None:
        other = api.with_token(factory.key(factory.organization(enabled=False)).token)
        answer = other.post("/jobs", json=JOB, headers={"Idempotency-Key": "k"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "tenant_disabled")
        # The refusal takes nothing: the same key works once the organization is enabled.
        assert api.services.db.run_read(lambda s: s.exec(select(IdempotencyKey)).all()) == []

    def test_a_key_of_one_project_creates_there_and_nowhere_else(self, api: Api, factory: Factory) -> None:
        project = factory.project(name="mine")
        client = api.with_token(factory.key(project=project).token)

        def create(**more: Any) -> Any:
            return client.post("/jobs", json=changed(**more), headers={"Idempotency-Key": f"k{more}"})

        assert create().json()["project"] == "mine"
        assert create(project="mine").json()["project"] == "mine"
        answer = create(project="default")
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")

    def test_a_project_of_another_organization_does_not_exist(self, api: Api, factory: Factory) -> None:
        theirs = factory.project(factory.organization(), name="theirs")
        assert isinstance(theirs, Project)
        assert api.create(changed(project="theirs")).status_code == 422
