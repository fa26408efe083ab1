"""What was made and never answered for costs all the same."""

from datetime import datetime
from decimal import Decimal

from providers.fake.cloud import CloudOffer
from providers.fake.faults import Operation
from tests.support.control_plane import ControlPlane, until

DEAR = CloudOffer(id="dear", accelerator="cpu-general", gpu_count=0, price_usd_hr=Decimal(360))


async def test_a_machine_whose_create_was_cut_off_by_a_termination_is_charged(plane: ControlPlane) -> None:
    assert plane.cloud is not None
    await plane.cloud.offers(DEAR)
    await plane.cloud.fault(Operation.CREATE, delay_after_seconds=60)
    job_id = await plane.fake(run_seconds=60)

    async def made() -> bool:
        assert plane.cloud is not None
        return bool(await plane.cloud.instances())

    await until(made, what="no machine was made")
    await plane.terminate(job_id)
    await plane.until_terminal(job_id)
    await plane.until_gone(job_id)

    [attempt] = await plane.attempts(job_id)
    [machine] = await plane.cloud.instances()
    assert attempt.allocated_at == datetime.fromisoformat(machine["created_at"])
    charged = await plane.cloud.charged(job_id)
    accrued = Decimal(str((await plane.job(job_id))["accrued_usd"]))
    # At ten cents a second, they differ by what passed between the deletion and its confirmation.
    assert Decimal(0) < accrued
    assert abs(float(accrued) - float(charged)) <= 0.5
