"""Forms as data: the fields that a backend asks for, what they take, and which of it is secret."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any

from domain.errors import InvalidRequest

Values = dict[str, Any]
"""What was filled in, by field: text, a whole number, a boolean, a list of texts, or a list of records (values too)."""
_ENTRY_CHARACTERS = 256
_NUMBER_CHARACTERS = 40


class FieldKind(StrEnum):
    TEXT = "text"
    SECRET = "secret"  # noqa: S105 - a kind of field, not a secret
    """Sealed, and never shown again."""
    FILE = "file"
    """The text of a file; as secret as `secret`."""
    BOOLEAN = "boolean"
    NUMBER = "number"
    """A JSON number, or one as text. Kept as a whole number, or as text where it may have places."""
    LIST = "list"
    """Of texts."""
    RECORDS = "records"
    """A list of records with `fields` of their own, some of which may be secret; `key` tells them apart."""


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of a form. `pattern` is what a text, or each entry of a list, must match whole."""

    name: str
    label: str
    kind: FieldKind = FieldKind.TEXT
    required: bool = True
    help: str = ""
    pattern: str | None = None
    max_characters: int = 256
    minimum: int = 0
    """Of a number."""
    maximum: int = 1_000_000
    places: int = 0
    """Of a number, after the point."""
    most: int = 64
    """Entries of a list."""
    fields: "tuple[FormField, ...]" = ()
    """Of a record: of any kind but lists."""
    key: str = ""
    """The field of a record that no other record of the list has the same of."""
    canonical: Callable[[str], str] = str
    """Of a value of `key`: two that are written differently may be the same."""
    shorthand: Callable[[str], Values] | None = None
    """Reads a record that is written as one text; raises ValueError for what is none."""

    @property
    def secret(self) -> bool:
        return self.kind in {FieldKind.SECRET, FieldKind.FILE}

    @property
    def limits(self) -> tuple[int, int] | None:
        """The least and the largest number; None of what is no number."""
        return (self.minimum, self.maximum) if self.kind is FieldKind.NUMBER else None

    @property
    def entries(self) -> int | None:
        """How many entries a list may have; None of what is no list."""
        return self.most if self.kind in {FieldKind.LIST, FieldKind.RECORDS} else None


Fields = tuple[FormField, ...]


def read(
    title: str, fields: Fields, given: Mapping[str, Any], kept: Mapping[str, Any] | None = None, where: str = "fields"
) -> Values:
    """What was filled in, checked; a field that is absent, or a secret that is blank, keeps its value of `kept`. A list
    of records takes the place of the one before, but a secret that is blank in a record is that of the record before
    with the same key.

    Raises:
        InvalidRequest: names the field and the limit; never a value, which may be secret.
    """
    known = {field.name: field for field in fields}
    for name in given:
        if name not in known:
            allowed = ", ".join(known)
            raise InvalidRequest(f"{where}: {title} has no field {str(name)[:64]!r}; it has {allowed}", field=where)
    values: Values = {}
    for name, field in known.items():
        before = None if kept is None else kept.get(name)
        at = f"{where}.{name}"
        value = _read(field, given[name], at, before) if name in given else None
        if value is None and (name not in given or field.secret):
            value = before
        if value is not None:
            values[name] = value
        elif field.required:
            raise InvalidRequest(f"{at}: {field.label} is missing", field=at)
    return values


def split(fields: Fields, values: Values) -> tuple[Values, Values]:
    """What may be shown, and what is secret. Of records both are lists of the same length."""
    shown: Values = {}
    secret: Values = {}
    for field in fields:
        value = values.get(field.name)
        if value is None:
            continue
        if field.kind is FieldKind.RECORDS:
            pairs = [split(field.fields, record) for record in value]
            shown[field.name] = [record for record, _ in pairs]
            if any(hidden for _, hidden in pairs):
                secret[field.name] = [hidden for _, hidden in pairs]
        elif field.secret:
            secret[field.name] = value
        else:
            shown[field.name] = value
    return shown, secret


def joined(shown: Values, secret: Values) -> Values:
    """What `split` took apart."""
    values = dict(shown)
    for name, value in secret.items():
        if isinstance(value, list):
            values[name] = [{**record, **hidden} for record, hidden in zip(shown[name], value, strict=True)]
        else:
            values[name] = value
    return values


def secrets_of(fields: Fields, values: Values) -> list[str]:
    """Every secret text in the values."""
    _, secret = split(fields, values)
    found: list[str] = []
    for value in secret.values():
        found += (
            [str(text) for record in value for text in record.values()] if isinstance(value, list) else [str(value)]
        )
    return found


def _read(field: FormField, value: Any, where: str, kept: Any) -> Any:
    """The value as it is kept; None where it was left blank."""
    if value is None or value == "":
        return None
    match field.kind:
        case FieldKind.BOOLEAN:
            if not isinstance(value, bool):
                raise InvalidRequest(f"{where}: must be true or false", field=where)
            return value
        case FieldKind.NUMBER:
            return _number(field, value, where)
        case FieldKind.LIST:
            return [_text(field, entry, where, _ENTRY_CHARACTERS) for entry in _list(field, value, where)] or None
        case FieldKind.RECORDS:
            return _records(field, _list(field, value, where), where, kept or ()) or None
        case _:
            text = _text(field, value, where, field.max_characters)
            # What is pasted ends in a line more often than not. Keys in PEM want theirs.
            return text if field.kind is FieldKind.FILE else text.strip() or None


def _list(field: FormField, value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > field.most:
        raise InvalidRequest(f"{where}: must be a list of at most {field.most}", field=where, limit=field.most)
    return value


def _records(field: FormField, given: list[Any], where: str, kept: Sequence[Values]) -> list[Values]:
    before = {record[field.key]: record for record in kept}
    records: dict[str, Values] = {}
    for number, entry in enumerate(given):
        at = f"{where}[{number}]"
        values = _record(field, entry, at)
        # Only secrets outlive an edit: what is not secret is shown, so it is sent back.
        _, hidden = split(field.fields, before.get(str(values.get(field.key, "")).strip(), {}))
        record = read(field.label, field.fields, values, hidden, at)
        key = field.canonical(record[field.key])
        if key in records:
            raise InvalidRequest(f"{at}.{field.key}: is in the list twice", field=f"{at}.{field.key}")
        records[key] = record
    return list(records.values())


def _record(field: FormField, entry: Any, where: str) -> Mapping[str, Any]:
    if isinstance(entry, Mapping):
        return entry
    if field.shorthand is None or not isinstance(entry, str):
        raise InvalidRequest(f"{where}: must be an object", field=where)
    try:
        return field.shorthand(_text(field, entry, where, _ENTRY_CHARACTERS))
    except ValueError:
        raise InvalidRequest(f"{where}: is none of the {field.label}", field=where) from None


def _number(field: FormField, value: Any, where: str) -> int | str:
    limits = f"from {field.minimum} to {field.maximum}"
    kind = f"with at most {field.places} places" if field.places else "a whole number"
    refused = InvalidRequest(f"{where}: must be {kind}, {limits}", field=where, limit=field.maximum)
    text = value.strip() if isinstance(value, str) else str(value)
    # Decimal reads more than people mean: exponents, underscores, digits of other scripts.
    if isinstance(value, bool) or len(text) > _NUMBER_CHARACTERS or not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text, re.A):
        raise refused
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise refused from None
    if not field.minimum <= number <= field.maximum or number != round(number, field.places):
        raise refused
    return f"{number:f}" if field.places else int(number)


def _text(field: FormField, value: Any, where: str, most: int) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{where}: must be text", field=where)
    if len(value) > most:
        raise InvalidRequest(f"{where}: has more than {most} characters", field=where, limit=most)
    printable = value.isprintable() if not field.secret else "\x00" not in value
    if not printable or (field.pattern is not None and not re.fullmatch(field.pattern, value.strip())):
        raise InvalidRequest(f"{where}: is no {field.label}", field=where)
    return value
