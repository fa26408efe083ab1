"""Image references follow the distribution grammar; the host decides where credentials may go (case 25)."""

import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from domain.errors import InvalidRequest
from domain.images import ImageReference, parse

SHA = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag", "digest"),
    [
        ("busybox", None, "busybox", None, None),
        ("busybox:1.36", None, "busybox", "1.36", None),
        ("org/app", None, "org/app", None, None),
        ("org/app/part", None, "org/app/part", None, None),
        ("host:5005/org/app", "host:5005", "org/app", None, None),
        ("host:5005/org/app:v1", "host:5005", "org/app", "v1", None),
        ("host:5005", None, "host", "5005", None),
        (f"name:tag@{SHA}", None, "name", "tag", SHA),
        (f"images.test/org/app@{SHA}", "images.test", "org/app", None, SHA),
        (f"images.test/org/app:1@{SHA}", "images.test", "org/app", "1", SHA),
        ("localhost/x", "localhost", "x", None, None),
        ("localhost:80/x:y", "localhost:80", "x", "y", None),
        ("localhost", None, "localhost", None, None),
        ("localhosts/x", None, "localhosts/x", None, None),
        ("HOST/app", "HOST", "app", None, None),
        ("registry.example.com:443/a/b_c/d__e/f-g/h---i/j.k", "registry.example.com:443", "a/b_c/d__e/f-g/h---i/j.k",
         None, None),
        ("10.0.0.1/app", "10.0.0.1", "app", None, None),
        ("[::1]/app", "[::1]", "app", None, None),
        ("[2001:db8::1]:5000/org/app:v1", "[2001:db8::1]:5000", "org/app", "v1", None),
        ("xn--n3h.com/app", "xn--n3h.com", "app", None, None),
        ("app:_under.score-dash", None, "app", "_under.score-dash", None),
        ("app@sha512:" + "a" * 128, None, "app", None, "sha512:" + "a" * 128),
        ("a" * 255, None, "a" * 255, None, None),
        ("a:" + "t" * 128, None, "a", "t" * 128, None),
    ],
)  # fmt: skip
def test_a_reference_is_split_by_the_grammar(
    text: str, registry: str | None, repository: str, tag: str | None, digest: str | None
) -> None:
    reference = parse(text)
    assert reference == ImageReference(registry, repository, tag, digest)
    assert str(reference) == text
    assert reference.has_explicit_host == (registry is not None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("https://images.test/org/app", "scheme"),
        ("docker://app", "scheme"),
        ("Org", "upper-case"),
        ("org/App", "upper-case"),
        ("images.test/Org/app", "upper-case"),
        ("app ", "without spaces"),
        (" app", "without spaces"),
        ("app\n", "printable"),
        ("app\0", "printable"),
        ("äpp", "ASCII"),
        ("аpp", "ASCII"),  # a Cyrillic first letter
        ("app:", "tag"),
        ("app:-x", "tag"),
        ("app:.x", "tag"),
        ("app:a:b", "tag"),
        ("app:a/b/c", "host"),
        ("app@", "digest"),
        ("app@sha256:abc", "digest"),
        ("app@md5:" + "a" * 32, "digest"),
        ("app@" + SHA.upper(), "digest"),
        (f"app@{SHA}@{SHA}", "digest"),
        (f"app@{SHA}:tag", "digest"),
        ("user:password@images.test/app", "digest"),
        ("/app", "path"),
        ("app/", "path"),
        ("a//b", "path"),
        ("-app", "path"),
        ("app-", "path"),
        ("a..b", "path"),
        ("a___b", "path"),
        ("a/../b", "path"),
        ("./app", "host"),
        ("../app", "host"),
        ("-host.io/app", "host"),
        ("host-.io/app", "host"),
        ("a_b.io/app", "host"),
        ("host:/app", "host"),
        ("host:x/app", "host"),
        ("host:0/app", "port"),
        ("host:65536/app", "port"),
        ("host:" + "9" * 30 + "/app", "port"),
        ("[::1/app", "host"),
        ("[fe80::1%eth0]/app", "host"),
        ("::1/app", "host"),
        ("images.test/", "path"),
        ("0123456789abcdef" * 4, "image id"),
    ],
)
def test_what_is_no_reference_is_refused_with_its_field(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        parse(text, field="container.image")
    assert refused.value.field == "container.image"


@pytest.mark.parametrize(
    ("text", "limit"),
    [("a" * 256, 255), ("images.test/" + "a" * 250, 255), ("a:" + "t" * 129, 128), ("A-" * 4_000_000, 520)],
)
def test_what_is_too_long_names_the_limit(text: str, limit: int) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(text)
    assert refused.value.limit == limit


def test_a_pasted_password_is_not_repeated() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse("https://me:hunter2@images.test/app")
    assert "hunter2" not in refused.value.message


hosts = st.from_regex(r"\A[a-zA-Z0-9]([a-zA-Z0-9-]{0,8}[a-zA-Z0-9])?\.[a-z]{2,3}(:[1-9][0-9]{0,3})?\Z")
paths = st.from_regex(r"\A[a-z0-9]{1,9}([._-][a-z0-9]{1,9}){0,2}(/[a-z0-9]{1,9}){0,3}\Z")
tags = st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}\Z")


@given(hosts | st.none(), paths, tags | st.none(), st.just(SHA) | st.none())
def test_what_is_put_together_comes_apart_again(
    registry: str | None, repository: str, tag: str | None, digest: str | None
) -> None:
    # Without a host, a first component with a dot is one.
    assume(registry is not None or "." not in repository.split("/")[0])
    reference = ImageReference(registry, repository, tag, digest)
    assert parse(str(reference)) == reference


ORIGINAL = re.compile(
    r"(?:(?:(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])(?:\.(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9]))*"
    r"|\[(?:[a-fA-F0-9:]+)\])(?::[0-9]+)?/)?"
    r"[a-z0-9]+(?:(?:[._]|__|[-]+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|[-]+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
)


@given(st.text(st.sampled_from("abA01._-:/@[]\n é"), max_size=24))
@example("a.b/c:d")
def test_nothing_is_accepted_that_the_original_expression_refuses(text: str) -> None:
    try:
        reference = parse(text)
    except InvalidRequest:
        return
    assert ORIGINAL.fullmatch(text)
    assert str(reference) == text
