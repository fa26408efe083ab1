"""What a form takes, refuses and keeps: records, numbers, and secrets that are left blank."""

from decimal import Decimal
from typing import Any

import pytest

from domain import forms
from domain.backends import backend_of, check_fields
from domain.errors import InvalidRequest
from domain.fleets import addresses_of

SSH = backend_of("ssh")
KEY = "canary-of-the-fleet"
OWN = "canary-of-the-host"


def filled(*hosts: Any, kept: forms.Values | None = None, **fields: Any) -> forms.Values:
    return check_fields(SSH, {"private_key": KEY, "hosts": list(hosts), **fields}, kept)


class TestRecords:
    def test_are_written_as_text_or_as_objects(self) -> None:
        values = filled("root@192.0.2.1:2222", {"hostname": "gpu-1"}, "[2001:db8::1]")
        assert values["hosts"] == [
            {"hostname": "192.0.2.1", "port": 2222, "user": "root"},
            {"hostname": "gpu-1"},
            {"hostname": "2001:db8::1"},
        ]

    @pytest.mark.parametrize(
        ("host", "field", "limit"),
        [
            ({"hostname": "a", "port": 70_000}, ".port", 65_535),
            ("a:70000", ".port", 65_535),
            ("a:", "", None),
            ("a:2x", ".port", 65_535),
            ({"hostname": "a", "port": True}, ".port", 65_535),
            ({"hostname": "a", "port": Decimal("22.5")}, ".port", 65_535),
            ({"hostname": "a", "cpu_slots": 0}, ".cpu_slots", 1024),
            ({"hostname": "a", "price_usd_hr": "1e2"}, ".price_usd_hr", 100_000),
            ({"hostname": "a", "price_usd_hr": "0.1234567"}, ".price_usd_hr", 100_000),
            ({"hostname": "a", "price_usd_hr": "NaN"}, ".price_usd_hr", 100_000),
            ({"hostname": "a", "private_key": OWN * 1000}, ".private_key", 16_384),
            ({"hostname": "a", "host_key": "-----BEGIN PRIVATE KEY-----"}, ".host_key", None),
            ({"hostname": "a" * 254}, ".hostname", 253),
            ({"hostname": "first"}, ".hostname", None),
            ({"port": 22}, ".hostname", None),
            ({"hostname": "a", "secret": OWN}, "", None),
            ({"hostname": ["a"]}, ".hostname", None),
            (7, "", None),
            ("x" * 300, "", 256),
        ],
    )
    def test_that_are_not_right_are_named_with_their_number_and_the_limit(
        self, host: Any, field: str, limit: int | None
    ) -> None:
        with pytest.raises(InvalidRequest) as refused:
            filled("first", "second", "third", host)
        assert (refused.value.field, refused.value.limit) == (f"fields.hosts[3]{field}", limit)
        assert f"fields.hosts[3]{field}:" in refused.value.message
        assert "canary" not in refused.value.message

    def test_are_no_more_than_the_list_takes(self) -> None:
        assert len(filled(*(f"h{n}" for n in range(256)))["hosts"]) == 256
        with pytest.raises(InvalidRequest) as refused:
            filled(*(f"h{n}" for n in range(257)))
        assert (refused.value.field, refused.value.limit) == ("fields.hosts", 256)

    def test_are_in_the_list_once_however_they_are_written(self) -> None:
        for one, again in (("GPU-1", "gpu-1"), ("10.0.0.1", "[::ffff:a00:1]:23"), ("[2001:db8::1]", "[2001:DB8:0::1]")):
            with pytest.raises(InvalidRequest, match=r"fields\.hosts\[1\]\.hostname: is in the list twice"):
                filled(one, again)

    def test_take_the_place_of_those_before_but_for_secrets_that_are_blank(self) -> None:
        before = filled({"hostname": "a", "port": 2222, "private_key": OWN}, {"hostname": "b", "private_key": "other"})
        after = filled({"hostname": "c"}, {"hostname": "a", "private_key": ""}, kept=before)
        assert after["hosts"] == [{"hostname": "c"}, {"hostname": "a", "private_key": OWN}]
        assert filled("a:23", kept=before)["hosts"] == [{"hostname": "a", "port": 23, "private_key": OWN}]
        changed = filled({"hostname": "a", "private_key": "new"}, kept=before)
        assert changed["hosts"] == [{"hostname": "a", "private_key": "new"}]

    def test_stay_where_an_edit_says_nothing_of_them(self) -> None:
        before = filled({"hostname": "a", "private_key": OWN}, user="root")
        assert check_fields(SSH, {"user": "admin", "private_key": ""}, before) == {**before, "user": "admin"}
        with pytest.raises(InvalidRequest, match=r"fields\.hosts: Hosts is missing"):
            check_fields(SSH, {"hosts": []}, before)

    def test_are_taken_apart_into_what_is_shown_and_what_is_secret(self) -> None:
        values = filled("a", {"hostname": "b", "private_key": OWN}, price_usd_hr=Decimal("2.50"))
        shown, secret = forms.split(SSH.fields, values)
        assert shown == {"hosts": [{"hostname": "a"}, {"hostname": "b"}], "price_usd_hr": "2.50"}
        assert secret == {"private_key": KEY, "hosts": [{}, {"private_key": OWN}]}
        assert forms.joined(shown, secret) == values
        assert set(SSH.secrets_of(values)) == {KEY, OWN}


def test_a_host_is_known_by_its_address_and_port_however_it_is_written() -> None:
    options = {
        "port": 2200,
        "hosts": [
            {"hostname": "GPU-1.Example."},
            {"hostname": "2001:DB8:0::1", "port": 22},
            {"hostname": "::ffff:192.0.2.1"},
        ],
    }
    assert list(addresses_of(options)) == ["gpu-1.example:2200", "[2001:db8::1]:22", "192.0.2.1:2200"]
    assert addresses_of({}) == {}
