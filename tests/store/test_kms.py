"""Master keys that AWS KMS encrypts, against a server that speaks its protocol."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from store.master_key import AwsKms, FileKeys, generate, parse, source_of, written
from store.vault import Vault, VaultError, create_key_file


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def _environment(aws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL_KMS": aws,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "eu-central-1",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def kms_key() -> str:
    client: Any = boto3.client("kms")
    return str(client.create_key(Description="headrace")["KeyMetadata"]["Arn"])


def test_a_key_file_holds_ciphertext_that_only_the_kms_key_opens(tmp_path: Path, kms_key: str) -> None:
    path = tmp_path / "master.key"
    create_key_file(path, kms_key)
    vault = Vault.load(None, path, kms_key)
    again = Vault.load(None, path, kms_key)
    assert again.open(vault.seal(b"x", "c"), "c") == b"x"
    with pytest.raises(VaultError, match="wanted id:base64 of 32 bytes"):
        Vault.load(None, path)
    assert vault.open(vault.seal(b"x", "c"), "c") == b"x"


def test_a_key_in_the_setting_may_be_encrypted_too(kms_key: str) -> None:
    key = generate()
    text = written(key, AwsKms(kms_key))
    assert source_of(text, Path("/nowhere"), kms_key).read() == [key]


def test_a_key_is_added_and_noticed_as_without_kms(tmp_path: Path, kms_key: str) -> None:
    path = tmp_path / "master.key"
    create_key_file(path, kms_key)
    running = Vault.load(None, path, kms_key)
    new = FileKeys(path, AwsKms(kms_key)).add()
    assert running.open(Vault.load(None, path, kms_key).seal(b"x", "c"), "c") == b"x"
    assert running.active_key_id == new.id


def test_an_entry_opens_under_its_own_id_only(kms_key: str) -> None:
    entry = written(generate(), AwsKms(kms_key))
    with pytest.raises(VaultError, match="does not decrypt the master key impostor"):
        parse("impostor:" + entry.partition(":")[2], AwsKms(kms_key))


def test_what_kms_refuses_is_said_without_key_material(kms_key: str) -> None:
    entry = written(generate(), AwsKms(kms_key))
    with pytest.raises(VaultError, match="AWS KMS") as refused:
        parse(entry, AwsKms("alias/not-there"))
    assert entry.partition(":")[2] not in str(refused.value)


def test_without_boto3_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(VaultError, match=r"install headrace\[aws\]"):
        parse("k1:AAAA", AwsKms("alias/x"))
