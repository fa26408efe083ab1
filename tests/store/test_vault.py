"""Sealed values open only unchanged, in their context, with a key that is configured; and nothing shows a secret."""

import base64
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.ids import AttemptId
from store.master_key import FileKeys, Plain, SettingKeys
from store.vault import MasterKey, Vault, VaultError, create_key_file, hash_token

# Not random: test processes must agree on the names of parametrised tests.
OLD = "k1:" + base64.b64encode(bytes(range(32))).decode()
NEW = "k2:" + base64.b64encode(bytes(range(100, 132))).decode()
VAULT = Vault.parse(OLD)
ATTEMPT, OTHER = AttemptId("inst-" + "a" * 20), AttemptId("inst-" + "b" * 20)


def secret_of(key: str) -> str:
    return key.partition(":")[2]


class TestSealing:
    @given(st.binary(max_size=1000), st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
    def test_what_was_sealed_opens_in_its_context(self, plaintext: bytes, context: str) -> None:
        blob = VAULT.seal(plaintext, context)
        assert VAULT.open(blob, context) == plaintext

    def test_the_same_value_is_sealed_differently_each_time(self) -> None:
        assert VAULT.seal(b"x", "c") != VAULT.seal(b"x", "c")

    def test_the_value_is_not_in_the_blob(self) -> None:
        assert b"hunter2-canary" not in VAULT.seal(b"hunter2-canary", "c")

    def test_another_context_does_not_open_it(self) -> None:
        blob = VAULT.seal(b"x", "workload:job_1")
        with pytest.raises(VaultError, match="workload:job_2"):
            VAULT.open(blob, "workload:job_2")

    @given(st.data())
    def test_any_changed_byte_is_noticed(self, data: st.DataObject) -> None:
        blob = bytearray(VAULT.seal(b"some secret", "c"))
        blob[data.draw(st.integers(0, len(blob) - 1))] ^= data.draw(st.integers(1, 255))
        with pytest.raises(VaultError):
            VAULT.open(bytes(blob), "c")

    def test_any_cut_is_noticed(self) -> None:
        blob = VAULT.seal(b"some secret", "c")
        for length in range(len(blob)):
            with pytest.raises(VaultError):
                VAULT.open(blob[:length], "c")

    @given(st.binary(max_size=80))
    def test_any_bytes_that_were_never_sealed_are_refused(self, blob: bytes) -> None:
        with pytest.raises(VaultError):
            VAULT.open(blob, "c")


class TestRotation:
    def test_what_the_old_key_sealed_opens_while_it_is_configured(self) -> None:
        blob = VAULT.seal(b"x", "c")
        assert Vault.parse(f"{NEW},{OLD}").open(blob, "c") == b"x"
        with pytest.raises(VaultError, match="not configured"):
            Vault.parse(NEW).open(blob, "c")

    def test_the_first_key_seals(self) -> None:
        rotated = Vault.parse(f"{NEW}\n{OLD}\n")
        assert rotated.active_key_id == NEW.partition(":")[0]
        assert Vault.parse(NEW).open(rotated.seal(b"x", "c"), "c") == b"x"

    def test_fingerprints_and_bootstrap_tokens_of_the_old_key_still_count(self) -> None:
        rotated = Vault.parse(f"{NEW},{OLD}")
        assert rotated.matches(VAULT.fingerprint(b"body"), b"body")
        assert rotated.attempt_of(VAULT.bootstrap_token(ATTEMPT)) == ATTEMPT
        assert not Vault.parse(NEW).matches(VAULT.fingerprint(b"body"), b"body")
        assert Vault.parse(NEW).attempt_of(VAULT.bootstrap_token(ATTEMPT)) is None

    def test_the_same_id_with_another_secret_opens_nothing(self) -> None:
        key_id = OLD.partition(":")[0]
        impostor = Vault.parse(f"{key_id}:{secret_of(NEW)}")
        with pytest.raises(VaultError):
            impostor.open(VAULT.seal(b"x", "c"), "c")


class TestKeys:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            " \n,",
            "k1",
            "k1:",
            secret_of(OLD),
            ":" + secret_of(OLD),
            "k1:" + secret_of(OLD)[:-4],
            "k1:" + secret_of(OLD).replace(secret_of(OLD)[5], "!"),
            "k" * 65 + ":" + secret_of(OLD),
            "ключ:" + secret_of(OLD),
            f"k1:{secret_of(OLD)},k1:{secret_of(NEW)}",
            f"{OLD},broken:{secret_of(NEW)[:20]}",
        ],
    )
    def test_what_is_no_key_is_refused_without_showing_any_of_it(self, text: str) -> None:
        with pytest.raises(VaultError) as refused:
            Vault.parse(text)
        for secret in (secret_of(OLD), secret_of(NEW)):
            pieces = {secret[start : start + 6] for start in range(len(secret) - 5)}
            assert not any(piece in str(refused.value) for piece in pieces)

    def test_a_generated_key_is_a_key_and_never_the_same(self) -> None:
        one, other = Vault.generate(), Vault.generate()
        assert one.partition(":")[0] != other.partition(":")[0]
        assert secret_of(one) != secret_of(other)
        assert Vault.parse(f"{one},{other}").active_key_id == one.partition(":")[0]

    def test_no_representation_shows_a_secret(self) -> None:
        key = MasterKey("k1", base64.b64decode(secret_of(OLD)))
        for shown in (repr(key), str(key), f"{key}", repr(VAULT), str(VAULT), repr([key])):
            assert secret_of(OLD) not in shown
            assert repr(key.secret) not in shown
            assert key.secret.hex() not in shown

    def test_a_created_file_is_its_owners_and_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "folder" / "master.key"
        create_key_file(path)
        text = path.read_text()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        create_key_file(path)
        assert path.read_text() == text
        assert Vault.load(None, path).open(Vault.parse(text).seal(b"x", "c"), "c") == b"x"
        assert [p.name for p in path.parent.iterdir()] == ["master.key"]

    def test_of_many_creators_at_once_one_wins_and_nobody_sees_half_a_key(self, tmp_path: Path) -> None:
        path = tmp_path / "master.key"

        def create(_: int) -> str:
            create_key_file(path)
            return Vault.load(None, path).active_key_id

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(create, range(32)))) == 1

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(VaultError, match=r"no master key at .*master\.key"):
            Vault.load(None, tmp_path / "master.key")

    def test_the_setting_comes_before_the_file(self, tmp_path: Path) -> None:
        create_key_file(tmp_path / "master.key")
        assert Vault.load(OLD, tmp_path / "master.key").active_key_id == OLD.partition(":")[0]


class TestTokens:
    def test_a_bootstrap_token_is_the_same_each_time_and_names_its_attempt(self) -> None:
        token = VAULT.bootstrap_token(ATTEMPT)
        assert token == VAULT.bootstrap_token(ATTEMPT)
        assert VAULT.attempt_of(token) == ATTEMPT
        assert re.fullmatch(r"hrb\.inst-[a-z2-7]{20}\.[A-Za-z0-9_-]{43}", token)

    @pytest.mark.parametrize(
        "token",
        [
            "",
            "hrb",
            "hrb..",
            f"hrb.{ATTEMPT}.",
            f"hrb.{ATTEMPT}.é",
            VAULT.bootstrap_token(ATTEMPT)[:-1],
            VAULT.bootstrap_token(ATTEMPT) + "A",
            VAULT.bootstrap_token(ATTEMPT).replace("hrb.", "hrs."),
            VAULT.bootstrap_token(OTHER).replace(OTHER, ATTEMPT),
            VAULT.session_token(ATTEMPT, "n"),
            VAULT.session_token(ATTEMPT, "n").replace("hrs.", "hrb."),
        ],
    )
    def test_a_changed_or_foreign_token_names_nobody(self, token: str) -> None:
        assert VAULT.attempt_of(token) is None

    def test_a_session_token_is_bound_to_attempt_and_nonce(self) -> None:
        tokens = {VAULT.session_token(attempt, nonce) for attempt in (ATTEMPT, OTHER) for nonce in ("n1", "n2")}
        assert len(tokens) == 4
        assert VAULT.session_token(ATTEMPT, "n1") in tokens

    def test_tokens_and_fingerprints_of_the_same_data_have_nothing_in_common(self) -> None:
        """Each purpose has a key of its own."""
        bootstrap = VAULT.bootstrap_token(ATTEMPT).rpartition(".")[2]
        mac = base64.urlsafe_b64decode(bootstrap + "=").hex()
        assert mac not in VAULT.fingerprint(ATTEMPT.encode())

    def test_the_stored_form_of_a_token_is_its_sha256(self) -> None:
        assert hash_token("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


class TestFingerprints:
    @given(st.binary(max_size=50), st.binary(max_size=50))
    def test_they_match_the_same_data_only(self, one: bytes, other: bytes) -> None:
        assert VAULT.matches(VAULT.fingerprint(one), other) == (one == other)

    def test_they_are_stable_keyed_and_tell_nothing(self) -> None:
        assert VAULT.fingerprint(b"password") == VAULT.fingerprint(b"password")
        assert VAULT.fingerprint(b"password") != Vault.parse(NEW).fingerprint(b"password")
        assert hash_token("password") not in VAULT.fingerprint(b"password")

    @pytest.mark.parametrize("fingerprint", ["", ":", "unknown:00", "é"])
    def test_what_is_no_fingerprint_matches_nothing(self, fingerprint: str) -> None:
        assert not VAULT.matches(fingerprint, b"x")


class TestSources:
    def test_a_process_that_runs_notices_a_new_key_once_it_meets_it(self, tmp_path: Path) -> None:
        path = tmp_path / "master.key"
        create_key_file(path)
        running = Vault.load(None, path)
        old = running.active_key_id
        rotating = FileKeys(path, Plain())
        rotating.read()
        new = rotating.add()
        other = Vault.load(None, path)
        assert (other.active_key_id, other.key_ids) == (new.id, (new.id, old))
        assert running.active_key_id == old
        assert running.open(other.seal(b"x", "c"), "c") == b"x"
        assert running.active_key_id == new.id
        assert other.open(Vault.load(None, path).seal(b"y", "c"), "c") == b"y"

    def test_it_notices_it_by_a_token_or_a_fingerprint_too(self, tmp_path: Path) -> None:
        path = tmp_path / "master.key"
        create_key_file(path)
        by_token, by_fingerprint = Vault.load(None, path), Vault.load(None, path)
        FileKeys(path, Plain()).add()
        other = Vault.load(None, path)
        assert by_token.attempt_of("hrb.x.y") is None
        assert by_token.attempt_of(other.bootstrap_token(ATTEMPT)) == ATTEMPT
        assert by_fingerprint.matches(other.fingerprint(b"body"), b"body")

    @pytest.mark.parametrize("damage", ["", "not a key", None])
    def test_a_file_that_was_damaged_leaves_it_the_keys_that_it_has(self, tmp_path: Path, damage: str | None) -> None:
        path = tmp_path / "master.key"
        create_key_file(path)
        running = Vault.load(None, path)
        blob = running.seal(b"x", "c")
        if damage is None:
            path.unlink()
        else:
            path.write_text(damage)
        for _ in range(2):
            with pytest.raises(VaultError, match="not configured"):
                running.open(VAULT.seal(b"x", "c"), "c")
        assert running.open(blob, "c") == b"x"
        with pytest.raises(VaultError):
            FileKeys(path, Plain()).add()

    def test_a_new_key_keeps_the_file_readable_for_whom_it_was(self, tmp_path: Path) -> None:
        path = tmp_path / "master.key"
        create_key_file(path)
        before = path.read_text()
        path.chmod(0o640)
        FileKeys(path, Plain()).add()
        assert path.read_text().endswith(before)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        assert [p.name for p in tmp_path.iterdir()] == ["master.key"]

    def test_a_setting_takes_no_new_key(self) -> None:
        with pytest.raises(VaultError, match="cannot be changed"):
            SettingKeys(OLD, Plain()).add()

    def test_a_remembered_fingerprint_key_compares_and_opens_nothing(self) -> None:
        fingerprint, blob = VAULT.fingerprint(b"body"), VAULT.seal(b"x", "c")
        later = Vault.parse(NEW)
        assert not later.knows_fingerprint(fingerprint)
        later.remember("k1", VAULT.fingerprint_key("k1"))
        assert later.matches(fingerprint, b"body")
        assert not later.matches(fingerprint, b"other")
        with pytest.raises(VaultError):
            later.open(blob, "c")
