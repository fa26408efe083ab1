"""A job by the official Python client, `meetkai-mka1`: submit, wait, read the log, see what it cost.

HEADRACE_API_URL and HEADRACE_API_KEY say where; `headrace up` wrote both into its credentials.json:

    export HEADRACE_API_URL=http://127.0.0.1:8080
    export HEADRACE_API_KEY=hr_...
    .venv/bin/python examples/official_client.py [IMAGE]
"""

import os
import sys
import time
import uuid

from meetkai_mka1 import SDK

IMAGE = "docker.io/library/buildpack-deps:curl"
TERMINAL = {"succeeded", "failed", "terminated"}


def main() -> int:
    """Runs one job; 0 when it succeeded."""
    url, key = os.environ.get("HEADRACE_API_URL"), os.environ.get("HEADRACE_API_KEY")
    if not (url and key):
        sys.exit("HEADRACE_API_URL and HEADRACE_API_KEY are not both set: the top of this file says how")
    with SDK(bearer_auth=key, server_url=url) as sdk:
        job = sdk.compute_jobs.create_job(
            # The same key again gives the same job: a retry after a lost answer costs nothing.
            idempotency_key=str(uuid.uuid4()),
            name="by-the-official-client",
            compute={"accelerator": "cpu-general", "gpu_count": 0, "vcpu_count": 1, "ephemeral_disk_gb": 1},
            container={"image": sys.argv[1] if sys.argv[1:] else IMAGE, "command": ["echo", "hello"]},
            limits={"max_cost_usd": 0.1, "max_runtime_hours": 0.25},
        )
        print(f"{job.id} is {job.state}")
        while job.state not in TERMINAL:
            time.sleep(0.2)
            job = sdk.compute_jobs.get_job(id=job.id)
        cursor = None
        while True:
            page = sdk.compute_jobs.list_job_logs(id=job.id, source="user", limit=1000, cursor=cursor)
            for line in page.data:
                print(f"{line.stream}: {line.message}")
            cursor = page.next_cursor
            if cursor is None:
                break
        print(f"{job.id} {job.state} on {job.provider}, {job.accrued_usd} USD")
        if job.reason:
            print(f"{job.reason.code}: {job.reason.message}")
        return 0 if job.state == "succeeded" else 1


if __name__ == "__main__":
    sys.exit(main())
