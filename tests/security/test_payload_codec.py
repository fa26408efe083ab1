"""What the Temporal server is given to store."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.exceptions import ApplicationError

from store.payload_codec import ENCODING, KEY_ID, EncryptingCodec
from store.temporal import data_converter
from store.vault import Vault, VaultError

SECRET = "an-argument-nobody-may-read"


class Order(BaseModel):
    note: str


class TestEncoding:
    async def test_an_encoded_payload_shows_only_its_encoding_and_its_key(self, vault: Vault) -> None:
        plain = Payload(metadata={"encoding": b"json/plain", "messageType": SECRET.encode()}, data=SECRET.encode())
        [sealed] = await EncryptingCodec(vault).encode([plain])
        assert dict(sealed.metadata) == {"encoding": ENCODING, KEY_ID: vault.active_key_id.encode()}
        assert SECRET.encode() not in sealed.SerializeToString()

    @given(metadata=st.dictionaries(st.text(max_size=20), st.binary(max_size=50)), data=st.binary(max_size=2000))
    async def test_decoding_gives_back_what_was_encoded(self, metadata: dict[str, bytes], data: bytes) -> None:
        codec = EncryptingCodec(Vault.parse(Vault.generate()))
        plain = Payload(metadata=metadata, data=data)
        assert await codec.decode(await codec.encode([plain, plain])) == [plain, plain]

    async def test_the_same_argument_twice_looks_different(self, vault: Vault) -> None:
        first, second = await EncryptingCodec(vault).encode([Payload(data=b"x"), Payload(data=b"x")])
        assert first.data != second.data


class TestDecoding:
    async def test_a_payload_that_is_not_encrypted_passes_through(self, vault: Vault) -> None:
        plain = Payload(metadata={"encoding": b"json/plain"}, data=b"1")
        assert await EncryptingCodec(vault).decode([plain]) == [plain]

    async def test_after_a_rotation_old_payloads_still_open(self) -> None:
        old, new = Vault.generate(), Vault.generate()
        sealed = await EncryptingCodec(Vault.parse(old)).encode([Payload(data=b"kept")])
        assert await EncryptingCodec(Vault.parse(f"{new},{old}")).decode(sealed) == [Payload(data=b"kept")]

    async def test_an_unknown_key_is_named_in_the_error(self, vault: Vault) -> None:
        sealed = await EncryptingCodec(vault).encode([Payload(data=b"lost")])
        with pytest.raises(VaultError, match=vault.active_key_id):
            await EncryptingCodec(Vault.parse(Vault.generate())).decode(sealed)

    async def test_a_changed_payload_is_refused(self, vault: Vault) -> None:
        [sealed] = await EncryptingCodec(vault).encode([Payload(data=b"true")])
        sealed.data = sealed.data[:-1] + bytes([sealed.data[-1] ^ 1])
        with pytest.raises(VaultError):
            await EncryptingCodec(vault).decode([sealed])

    async def test_a_blob_sealed_for_another_purpose_is_refused(self, vault: Vault) -> None:
        blob = vault.seal(Payload(data=b"x").SerializeToString(), "workload:job_1")
        with pytest.raises(VaultError):
            await EncryptingCodec(vault).decode([Payload(metadata={"encoding": ENCODING}, data=blob)])


class TestConverter:
    async def test_models_make_the_round_trip_encrypted(self, vault: Vault) -> None:
        converter = data_converter(vault)
        payloads = await converter.encode([Order(note=SECRET)])
        assert SECRET.encode() not in payloads[0].SerializeToString()
        assert await converter.decode(payloads, [Order]) == [Order(note=SECRET)]

    async def test_a_failure_keeps_its_type_in_clear_and_its_message_encrypted(self, vault: Vault) -> None:
        failure = Failure()
        await data_converter(vault).encode_failure(ApplicationError(SECRET, SECRET, type="NoCapacity"), failure)
        assert failure.application_failure_info.type == "NoCapacity"
        assert SECRET.encode() not in failure.SerializeToString()
        decoded = await data_converter(vault).decode_failure(failure)
        assert isinstance(decoded, ApplicationError)
        assert decoded.message == SECRET
