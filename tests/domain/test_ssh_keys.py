"""Public keys become one exact line of authorized_keys, or are refused without being repeated (case 24)."""

import base64
import struct
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import InvalidRequest
from domain.ssh_keys import normalise


def public_line(private: Any) -> str:
    return str(
        private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    )


def strings(*parts: bytes) -> str:
    return base64.b64encode(b"".join(struct.pack(">I", len(part)) + part for part in parts)).decode()


def security_key(kind: str) -> str:
    if "ed25519" in kind:
        point = ed25519.Ed25519PrivateKey.generate().public_key().public_bytes_raw()
        return f"{kind} {strings(kind.encode(), point, b'ssh:')}"
    private = ec.generate_private_key(ec.SECP256R1())
    point = private.public_key().public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    return f"{kind} {strings(kind.encode(), b'nistp256', point, b'ssh:')}"


ED25519_PRIVATE = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32))
ED25519 = public_line(ED25519_PRIVATE)
KEYS = {
    "ed25519": ED25519,
    "rsa 2048": public_line(rsa.generate_private_key(65537, 2048)),
    "rsa 4096": public_line(rsa.generate_private_key(65537, 4096)),
    "nistp256": public_line(ec.generate_private_key(ec.SECP256R1())),
    "nistp384": public_line(ec.generate_private_key(ec.SECP384R1())),
    "nistp521": public_line(ec.generate_private_key(ec.SECP521R1())),
    "sk-ssh": security_key("sk-ssh-ed25519@openssh.com"),
    "sk-ecdsa": security_key("sk-ecdsa-sha2-nistp256@openssh.com"),
}


@pytest.mark.parametrize("name", KEYS)
def test_each_supported_kind_is_kept_exactly(name: str) -> None:
    assert normalise(KEYS[name]) == KEYS[name]
    assert normalise(f"{KEYS[name]} me@home") == f"{KEYS[name]} me@home"


@pytest.mark.parametrize(
    "text",
    [
        f"{ED25519} my  laptop ü",
        f"{ED25519} my  laptop ü\n",
        f"{ED25519} my  laptop ü\r\n",
        f"\r\n  {ED25519} my  laptop ü  \n\n",
        f"\ufeff{ED25519} my  laptop ü",
        ED25519.replace(" ", "\t ") + "\tmy  laptop ü",
    ],
)
def test_space_around_goes_and_the_comment_stays(text: str) -> None:
    assert normalise(text) == f"{ED25519} my  laptop ü"


def private_texts() -> list[str]:
    no_password = serialization.NoEncryption()
    return [
        ED25519_PRIVATE.private_bytes(encoding, form, no_password).decode()
        for encoding, form in [
            (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH),
            (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8),
        ]
    ] + ["PuTTY-User-Key-File-3: ssh-ed25519\nPrivate-Lines: 1\nAAAAsecret"]


@pytest.mark.parametrize("text", private_texts(), ids=["openssh", "pkcs8", "putty"])
@pytest.mark.parametrize(
    "around", ["{}", "  {}", "key: {}", ED25519 + "\n{}"], ids=["alone", "indented", "named", "second"]
)
def test_a_private_key_is_refused_and_not_repeated(text: str, around: str) -> None:
    with pytest.raises(InvalidRequest, match="private key") as refused:
        normalise(around.format(text))
    secret_lines = [line for line in text.splitlines() if "KEY" not in line and "Key" not in line]
    shown = f"{refused.value.message} {refused.value.details}"
    assert not any(line in shown for line in secret_lines)


CHANGED = ED25519[:-6] + ("AAAAAA" if ED25519[-6:] != "AAAAAA" else "BBBBBB")


REFUSED = [
    ("", "is empty"),
    (" \r\n", "is empty"),
    (f"{ED25519}\n{KEYS['nistp256']}", "several lines"),
    (f"{ED25519}\r{KEYS['nistp256']}", "several keys|control"),
    (f"{ED25519} {KEYS['nistp256']}", "several keys"),
    (f"{ED25519}\n# a comment", "several lines"),
    (f'command="rm -rf /" {ED25519}', "options before"),
    (f"no-pty,from=10.0.0.1 {ED25519}", "options before"),
    (public_line(rsa.generate_private_key(65537, 1024)), "1024 bits, at least 2048"),
    ("ssh-dss AAAAB3NzaC1kc3MAAACBAP", "supported type"),
    ("ssh-ed25519-cert-v01@openssh.com AAAA", "supported type"),
    ("---- BEGIN SSH2 PUBLIC KEY ----\nAAAA\n---- END SSH2 PUBLIC KEY ----", "ssh-keygen -i"),
    ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "ssh-keygen -i"),
    ("hello", "supported type"),
    ("ssh-ed25519", "cannot be read"),
    ("ssh-ed25519 AAAA", "cannot be read"),
    ("ssh-ed25519 !!!!", "cannot be read"),
    (ED25519[:-4], "cannot be read"),
    (ED25519 + "AAAA", "cannot be read"),
    (ED25519.replace("ssh-ed25519", "ssh-rsa"), "cannot be read"),
    (KEYS["nistp256"].replace("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384"), "cannot be read"),
    (f"{ED25519} a\0b", "control character"),
    (f"{ED25519} a\x1b[2Jb", "control character"),
    (f"{ED25519} a\u2028b", "control character"),
    (ED25519 + " " + "x" * 20_000, "at most 16384"),
]


# The names of the tests must not hold the keys: those that are generated differ in every test process.
@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_no_single_public_key_is_refused_with_its_field(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        normalise(text, field="access.ssh_public_key")
    assert refused.value.field == "access.ssh_public_key"


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=40))
def test_any_printable_comment_is_kept_on_one_line(comment: str) -> None:
    line = normalise(f"{ED25519} {comment}")
    assert line == f"{ED25519} {comment.strip()}".rstrip()
    assert normalise(line) == line


@given(st.text(max_size=200))
def test_any_text_is_refused_or_becomes_one_line(text: str) -> None:
    try:
        line = normalise(text)
    except InvalidRequest:
        return
    assert len(line.splitlines()) == 1
