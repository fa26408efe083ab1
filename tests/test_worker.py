"""The worker as a process."""

import resource

from worker import allow_files


def test_opens_as_many_files_as_it_may_and_no_fewer_than_before() -> None:
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before, 1024), hard))
        allow_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 65_536), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
