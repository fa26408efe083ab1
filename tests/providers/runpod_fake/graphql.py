"""RunPod's GraphQL API, as far as REST v2 has no routes: a schema of the known types, run by a real GraphQL engine.

Refusals are answers with status 200 and `errors`, as the vendor's are.
"""

from typing import Any

from graphql import FieldNode, GraphQLError, OperationDefinitionNode, build_schema, graphql_sync, parse, validate

from providers.fake.cloud import Refused
from providers.fake.faults import Fault, Operation
from tests.providers.runpod_fake.account import GPUS, Account, GpuOnSale, PodDetails

SCHEMA = build_schema("""
type Query {
  myself: User
  gpuTypes(input: GpuTypeFilter): [GpuType]
}
type Mutation { podRentInterruptable(input: PodRentInterruptableInput!): Pod }
type User { id: ID! pubKey: String networkVolumes: [NetworkVolume] }
type NetworkVolume { id: ID name: String size: Int dataCenterId: String }
input GpuTypeFilter { id: String ids: [String] }
input GpuLowestPriceInput {
  gpuCount: Int! minDisk: Int minMemoryInGb: Int minVcpuCount: Int secureCloud: Boolean dataCenterId: String
}
type GpuType {
  id: String displayName: String memoryInGb: Int secureCloud: Boolean communityCloud: Boolean
  lowestPrice(input: GpuLowestPriceInput): LowestPrice
}
type LowestPrice {
  minimumBidPrice: Float uninterruptablePrice: Float stockStatus: String minVcpu: Int minMemory: Int
}
enum CloudTypeEnum { SECURE COMMUNITY ALL }
input EnvironmentVariableInput { key: String! value: String! }
input PodRentInterruptableInput {
  bidPerGpu: Float! cloudType: CloudTypeEnum gpuCount: Int! gpuTypeId: String name: String imageName: String
  dockerArgs: String ports: String env: [EnvironmentVariableInput] containerDiskInGb: Int volumeInGb: Int
  containerRegistryAuthId: String dataCenterId: String startSsh: Boolean allowedCudaVersions: [String]
}
type Pod { id: String! name: String imageName: String desiredStatus: String costPerHr: Float }
""")
_OPERATIONS = {"myself": Operation.VERIFY, "gpuTypes": Operation.OFFERS, "podRentInterruptable": Operation.CREATE}


def operation_of(query: str) -> Operation:
    """What a document asks for. Raises Refused for one that is not valid."""
    try:
        document = parse(query)
        problems = validate(SCHEMA, document)
    except GraphQLError as error:
        problems = [error]
    if problems:
        raise Refused(400, "GRAPHQL_VALIDATION_FAILED", problems[0].message)
    definition = document.definitions[0]
    assert isinstance(definition, OperationDefinitionNode)
    selected = definition.selection_set.selections[0]
    assert isinstance(selected, FieldNode)
    return _OPERATIONS[selected.name.value]


def execute(account: Account, query: str, variables: dict[str, Any], fault: Fault) -> dict[str, Any]:
    """The answer's `data`. Raises Refused."""
    result = graphql_sync(SCHEMA, query, root_value=_Root(account, fault), variable_values=variables)
    if result.errors:
        original = result.errors[0].original_error
        if isinstance(original, Refused):
            raise original
        raise Refused(400, "BAD_USER_INPUT", result.errors[0].message)
    return dict(result.data or {})


class _Root:
    def __init__(self, account: Account, fault: Fault) -> None:
        self._account = account
        self._fault = fault

    def myself(self, info: Any) -> dict[str, Any]:
        return {"id": "user_fake", "pubKey": "", "networkVolumes": []}

    def gpuTypes(self, info: Any, input: dict[str, Any] | None = None) -> list["_GpuType"]:
        return [_GpuType(gpu) for gpu in GPUS]

    def podRentInterruptable(self, info: Any, input: dict[str, Any]) -> dict[str, Any]:
        gpu = next(gpu for gpu in GPUS if gpu.id == input["gpuTypeId"])
        if input["bidPerGpu"] < float(gpu.bid):
            raise Refused(400, "RUNPOD", "Your bid is too low to rent this pod")
        details = PodDetails(
            args=input["dockerArgs"],
            disk=input["containerDiskInGb"],
            ports=[port for port in input["ports"].split(",") if port],
            env={entry["key"]: entry["value"] for entry in input["env"]},
            hardware_id=gpu.id,
            count=input["gpuCount"],
            cloud=input["cloudType"],
            data_center=input.get("dataCenterId"),
            registry=input.get("containerRegistryAuthId"),
            spot=True,
            cuda=input.get("allowedCudaVersions"),
        )
        made = self._account.make_pod(input["name"], input["imageName"], details, self._fault)
        return {"id": made.id, "name": made.name, "costPerHr": float(made.prices[-1][1])}


class _GpuType:
    def __init__(self, gpu: GpuOnSale) -> None:
        self.id = self.displayName = gpu.id
        self.memoryInGb = gpu.memory_gb
        self.secureCloud = self.communityCloud = True
        self._gpu = gpu

    def lowestPrice(self, info: Any, input: dict[str, Any]) -> dict[str, Any] | None:
        count = input["gpuCount"]
        if count > self._gpu.most:
            return None
        return {
            "minimumBidPrice": float(self._gpu.bid) or None,
            "stockStatus": "High" if self._gpu.bid else None,
            "minVcpu": 8 * count,
            "minMemory": 60 * count,
        }
