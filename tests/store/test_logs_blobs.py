"""Every blob store keeps one contract; S3 is the real client against a real server of its protocol."""

import threading
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from store.logs.blobs import BlobError, BlobMissing, BlobStore, open_blob_store

BUCKET = "segments"


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


class TestBlobStore:
    """The contract."""

    __test__ = False

    def test_an_object_comes_back_whole_and_in_parts(self, blobs: BlobStore) -> None:
        blobs.put("job_1/000000000001-ab", b"0123456789")
        assert blobs.get("job_1/000000000001-ab", 0, 10) == b"0123456789"
        assert blobs.get("job_1/000000000001-ab", 3, 4) == b"3456"
        assert blobs.get("job_1/000000000001-ab", 9, 1) == b"9"

    def test_any_byte_is_kept(self, blobs: BlobStore) -> None:
        data = bytes(range(256)) * 5_000
        blobs.put("a", data)
        assert blobs.get("a", 0, len(data)) == data

    def test_an_object_that_is_not_there_is_missing(self, blobs: BlobStore) -> None:
        with pytest.raises(BlobMissing, match="job_1/none"):
            blobs.get("job_1/none", 0, 1)

    @pytest.mark.parametrize(("offset", "length"), [(0, 11), (9, 2), (10, 1), (500, 1)])
    def test_a_part_beyond_the_end_is_an_error_and_not_missing(
        self, blobs: BlobStore, offset: int, length: int
    ) -> None:
        blobs.put("a", b"0123456789")
        with pytest.raises(BlobError) as caught:
            blobs.get("a", offset, length)
        assert not isinstance(caught.value, BlobMissing)

    def test_a_deleted_object_is_missing_and_its_neighbour_stays(self, blobs: BlobStore) -> None:
        blobs.put("job_1/a", b"a")
        blobs.put("job_1/b", b"b")
        blobs.delete("job_1/a")
        with pytest.raises(BlobMissing):
            blobs.get("job_1/a", 0, 1)
        assert blobs.get("job_1/b", 0, 1) == b"b"

    def test_deleting_twice_is_fine(self, blobs: BlobStore) -> None:
        blobs.put("job_1/a", b"a")
        blobs.delete("job_1/a")
        blobs.delete("job_1/a")
        blobs.delete("job_2/never")

    @pytest.mark.parametrize(
        "name", ["", "/etc/x", "../x", "a/../../x", "a//b", ".hidden", "a/.", "a b", "a\n", "a\0", "é"]
    )
    def test_a_name_that_could_lead_elsewhere_is_refused(self, blobs: BlobStore, name: str) -> None:
        with pytest.raises(ValueError, match="not the name"):
            blobs.put(name, b"x")
        with pytest.raises(ValueError, match="not the name"):
            blobs.get(name, 0, 1)
        with pytest.raises(ValueError, match="not the name"):
            blobs.delete(name)

    def test_threads_may_share_it(self, blobs: BlobStore) -> None:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for turn in range(15):
                    name, data = f"job_{number % 2}/{number}-{turn}", bytes([number]) * 100
                    blobs.put(name, data)
                    assert blobs.get(name, 50, 50) == data[50:]
                    blobs.delete(name)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures


class TestFileStore(TestBlobStore):
    __test__ = True

    @pytest.fixture
    def blobs(self, tmp_path: Path) -> BlobStore:
        return open_blob_store(f"file://{tmp_path}/with%20space/logs")

    def test_nothing_is_left_of_deleted_objects_and_failed_writes(self, blobs: BlobStore, tmp_path: Path) -> None:
        blobs.put("job_1/a", b"a")
        (tmp_path / "with space/logs/job_1/taken").mkdir()
        with pytest.raises(OSError):
            blobs.put("job_1/taken", b"x")
        (tmp_path / "with space/logs/job_1/taken").rmdir()
        blobs.delete("job_1/a")
        assert list((tmp_path / "with space/logs").iterdir()) == []

    def test_others_on_the_machine_cannot_read_it(self, blobs: BlobStore, tmp_path: Path) -> None:
        blobs.put("job_1/a", b"a")
        path = tmp_path / "with space/logs/job_1/a"
        assert path.stat().st_mode & 0o077 == 0
        assert path.parent.stat().st_mode & 0o077 == 0


class TestS3Store(TestBlobStore):
    __test__ = True

    @pytest.fixture(params=["", "/deep/er"], ids=["no-prefix", "prefix"])
    def blobs(
        self, request: pytest.FixtureRequest, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[BlobStore]:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            monkeypatch.setenv(name, value)
        self.client = boto3.client("s3", endpoint_url=s3_endpoint)
        self.client.create_bucket(Bucket=BUCKET)
        yield open_blob_store(f"s3://{BUCKET}{request.param}", s3_endpoint_url=s3_endpoint)
        for entry in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", []):
            self.client.delete_object(Bucket=BUCKET, Key=entry["Key"])
        self.client.delete_bucket(Bucket=BUCKET)

    def test_objects_lie_under_the_prefix(self, blobs: BlobStore, request: pytest.FixtureRequest) -> None:
        blobs.put("job_1/a", b"a")
        prefix = "deep/er/" if "no-prefix" not in request.node.name else ""
        assert [entry["Key"] for entry in self.client.list_objects_v2(Bucket=BUCKET)["Contents"]] == [
            prefix + "job_1/a"
        ]

    def test_a_bucket_that_is_not_there_is_an_error_and_not_a_missing_object(
        self, blobs: BlobStore, s3_endpoint: str
    ) -> None:
        elsewhere = open_blob_store("s3://no-such-bucket/x", s3_endpoint_url=s3_endpoint)
        with pytest.raises(BlobError, match="no-such-bucket"):
            elsewhere.put("a", b"x")
        with pytest.raises(BlobError) as caught:
            elsewhere.get("a", 0, 1)
        assert not isinstance(caught.value, BlobMissing)

    def test_a_store_that_does_not_answer_is_an_error(self, blobs: BlobStore) -> None:
        away = open_blob_store(f"s3://{BUCKET}", s3_endpoint_url="http://127.0.0.1:1")
        for use in (lambda: away.put("a", b"x"), lambda: away.get("a", 0, 1), lambda: away.delete("a")):
            with pytest.raises(BlobError, match="log segment a"):
                use()


@pytest.mark.parametrize("url", ["", "/tmp/x", "file://relative/dir", "file:x", "s3://", "s3:///prefix", "http://a/b"])
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(BlobError, match="neither"):
        open_blob_store(url)
