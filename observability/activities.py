"""Binds the job's id to whatever an activity logs."""

from typing import Any

import structlog
from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor


class ActivityLogContext(Interceptor):
    """For `Worker(interceptors=...)`: every log line of an activity names its job, its type and its try."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Bound(next)


class _Bound(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        with structlog.contextvars.bound_contextvars(
            job_id=info.workflow_id, activity=info.activity_type, attempt=info.attempt
        ):
            return await super().execute_activity(input)
