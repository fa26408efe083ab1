"""Create the tables. There is no way back but the backup from before."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "agentscript",
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("kept_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("sha256"),
    )
    op.create_table(
        "apikey",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("org_id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=True),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=True),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("key_hash", sa.String(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("last_used_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key_hash"),
    )
    with op.batch_alter_table("apikey", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_apikey_org_id"), ["org_id"], unique=False)

    op.create_table(
        "auditentry",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("org_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("on_behalf_of", sa.String(), nullable=True),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("resource", sa.String(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=False),
        sa.Column("data", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        info={"append_only": True},
    )
    with op.batch_alter_table("auditentry", schema=None) as batch_op:
        batch_op.create_index("ix_auditentry_org", ["org_id", "id"], unique=False)
        batch_op.create_index("ix_auditentry_resource", ["resource", "id"], unique=False)

    op.create_table(
        "billed_day",
        sa.Column("org_id", sa.String(), nullable=False),
        sa.Column("resource_type", sa.String(), nullable=False),
        sa.Column("day", sa.BigInteger(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("whole", sa.BigInteger(), nullable=False),
        sa.Column("nano", sa.BigInteger(), nullable=False),
        sa.Column("atto", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("org_id", "resource_type", "day", "project_id"),
    )
    op.create_table(
        "billed_resource",
        sa.Column("resource_id", sa.String(collation="C").with_variant(sa.String(), "sqlite"), nullable=False),
        sa.Column("resource_type", sa.String(), nullable=False),
        sa.Column("org_id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("resource_at", sa.BigInteger(), nullable=False),
        sa.Column("begins_at", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("resource_id"),
    )
    with op.batch_alter_table("billed_resource", schema=None) as batch_op:
        batch_op.create_index("ix_billed_page", ["org_id", "resource_at", "resource_id"], unique=False)
        batch_op.create_index(
            "ix_billed_window", ["org_id", "last_at", "begins_at", "project_id", "resource_type"], unique=False
        )

    op.create_table(
        "budget",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("org_id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("period", sa.String(), nullable=False),
        sa.Column("amount_usd", sa.Text(), nullable=False),
        sa.Column("alert_percents", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("org_id", "project_id", "owner", "period"),
    )
    op.create_table(
        "budgetalert",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("budget_id", sa.String(), nullable=False),
        sa.Column("org_id", sa.String(), nullable=False),
        sa.Column("window_start", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("percent", sa.Integer(), nullable=False),
        sa.Column("amount_usd", sa.Text(), nullable=False),
        sa.Column("spent_usd", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("budget_id", "window_start", "kind", "percent", "amount_usd"),
    )
    op.create_table(
        "budgetreservation",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("rate_seconds", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id"),
    )
    op.create_table(
        "connection",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("org_id", sa.String(), nullable=True),
        sa.Column("project_id", sa.String(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("credentials_sealed", sa.LargeBinary(), nullable=True),
        sa.Column("candidate_options", sa.Text(), nullable=True),
        sa.Column("candidate_sealed", sa.LargeBinary(), nullable=True),
        sa.Column("candidate_at", sa.BigInteger(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("verification", sa.Integer(), nullable=False),
        sa.Column("verified_number", sa.Integer(), nullable=False),
        sa.Column("verified_status", sa.String(), nullable=True),
        sa.Column("verified_message", sa.Text(), nullable=True),
        sa.Column("verified_at", sa.BigInteger(), nullable=True),
        sa.Column("verified_hosts", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("scope", "name"),
    )
    with op.batch_alter_table("connection", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_connection_org_id"), ["org_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_connection_scope"), ["scope"], unique=False)

    op.create_table(
        "connectionhealth",
        sa.Column("connection_id", sa.String(), nullable=False),
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("capabilities", sa.Text(), nullable=True),
        sa.Column("last_poll_at", sa.BigInteger(), nullable=True),
        sa.Column("observed_at", sa.BigInteger(), nullable=True),
        sa.Column("latency_ms", sa.Integer(), nullable=False),
        sa.Column("offer_count", sa.Integer(), nullable=False),
        sa.Column("error_kind", sa.String(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("blocked", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("connection_id"),
    )
    op.create_table(
        "connectionsweep",
        sa.Column("connection_id", sa.String(), nullable=False),
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("began_at", sa.BigInteger(), nullable=False),
        sa.Column("read_at", sa.BigInteger(), nullable=True),
        sa.Column("orphans_deleted", sa.Integer(), nullable=False),
        sa.Column("missing", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("connection_id"),
    )
    op.create_table(
        "hostkey",
        sa.Column("connection_id", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("first_seen_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("connection_id", "address"),
    )
    op.create_table(
        "idempotencykey",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("org_id", sa.String(), nullable=False),
        sa.Column("operation", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("resource_id", sa.String(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("org_id", "operation", "key"),
    )
    op.create_table(
        "installation",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("owner_id", sa.String(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.String(), nullable=True),
        sa.Column("fence_before", sa.String(), nullable=True),
        sa.Column("fence_at", sa.BigInteger(), nullable=True),
        sa.Column("fenced", sa.Boolean(), nullable=False),
        sa.Column("fence_confirmed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "instance",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("org_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("connection_id", sa.String(), nullable=False),
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("offer", sa.Text(), nullable=False),
        sa.Column("exclusive_ref", sa.String(), nullable=True),
        sa.Column("handle", sa.Text(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason_code", sa.String(), nullable=True),
        sa.Column("reason_message", sa.Text(), nullable=True),
        sa.Column("last_words", sa.Text(), nullable=True),
        sa.Column("endpoints", sa.Text(), nullable=True),
        sa.Column("ssh_host_key", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("create_settled_at", sa.BigInteger(), nullable=True),
        sa.Column("allocated_at", sa.BigInteger(), nullable=True),
        sa.Column("hello_at", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("exited_at", sa.BigInteger(), nullable=True),
        sa.Column("draining_at", sa.BigInteger(), nullable=True),
        sa.Column("terminal_at", sa.BigInteger(), nullable=True),
        sa.Column("delete_requested_at", sa.BigInteger(), nullable=True),
        sa.Column("delete_accepted_at", sa.BigInteger(), nullable=True),
        sa.Column("confirmed_absent_at", sa.BigInteger(), nullable=True),
        sa.Column("last_contact_at", sa.BigInteger(), nullable=True),
        sa.Column("nonce", sa.String(), nullable=True),
        sa.Column("session_hash", sa.String(), nullable=True),
        sa.Column("secrets_sealed", sa.LargeBinary(), nullable=True),
        sa.Column("stop_requested_at", sa.BigInteger(), nullable=True),
        sa.Column("exit_report", sa.Text(), nullable=True),
        sa.Column("drained_at", sa.BigInteger(), nullable=True),
        sa.Column("stream_run_id", sa.String(), nullable=True),
        sa.Column("stream_activity_id", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job_id", "number"),
    )
    with op.batch_alter_table("instance", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_instance_job_id"), ["job_id"], unique=False)
        batch_op.create_index("ix_instance_open", ["connection_id", "confirmed_absent_at"], unique=False)
        batch_op.create_index("ix_instance_org_absent", ["org_id", "confirmed_absent_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_instance_session_hash"), ["session_hash"], unique=False)
        batch_op.create_index(batch_op.f("ix_instance_state"), ["state"], unique=False)
        batch_op.create_index(
            "ux_instance_exclusive",
            ["exclusive_ref"],
            unique=True,
            sqlite_where=sa.text("confirmed_absent_at IS NULL"),
            postgresql_where=sa.text("confirmed_absent_at IS NULL"),
        )

    op.create_table(
        "job",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("org_id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("on_behalf_of", sa.String(), nullable=True),
        sa.Column("name", sa.String(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("labels", sa.Text(), nullable=True),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("workload_sealed", sa.LargeBinary(), nullable=False),
        sa.Column("registry_sealed", sa.LargeBinary(), nullable=True),
        sa.Column("uses_secrets", sa.Boolean(), nullable=False),
        sa.Column("trace_context", sa.Text(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason_code", sa.String(), nullable=True),
        sa.Column("reason_message", sa.Text(), nullable=True),
        sa.Column("reason_details", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("allocated_at", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("terminal_at", sa.BigInteger(), nullable=True),
        sa.Column("history_exported_at", sa.BigInteger(), nullable=True),
        sa.Column("workflow_started_at", sa.BigInteger(), nullable=True),
        sa.Column("run_token", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("job", schema=None) as batch_op:
        batch_op.create_index("ix_job_org_created", ["org_id", "created_at", "id"], unique=False)
        batch_op.create_index("ix_job_org_state_created", ["org_id", "state", "created_at", "id"], unique=False)
        batch_op.create_index(batch_op.f("ix_job_state"), ["state"], unique=False)
        batch_op.create_index(batch_op.f("ix_job_terminal_at"), ["terminal_at"], unique=False)

    op.create_table(
        "jobevent",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("transition_id", sa.String(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("id"),
        sa.UniqueConstraint("job_id", "transition_id"),
    )
    with op.batch_alter_table("jobevent", schema=None) as batch_op:
        batch_op.create_index("ix_jobevent_job", ["job_id", "seq"], unique=False)

    op.create_table(
        "ledger_entry",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("org_id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("resource_type", sa.String(), nullable=False),
        sa.Column("resource_id", sa.String(), nullable=False),
        sa.Column("instance_id", sa.String(), nullable=False),
        sa.Column("begins_at", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.Column("units", sa.Integer(), nullable=False),
        sa.Column("unit_seconds", sa.Integer(), nullable=False),
        sa.Column("usd_per_hour", sa.Text(), nullable=False),
        sa.Column("whole", sa.BigInteger(), nullable=False),
        sa.Column("nano", sa.BigInteger(), nullable=False),
        sa.Column("atto", sa.BigInteger(), nullable=False),
        sa.Column("written_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("instance_id", "begins_at"),
        info={"append_only": True},
    )
    with op.batch_alter_table("ledger_entry", schema=None) as batch_op:
        batch_op.create_index("ix_ledger_resource", ["resource_id", "begins_at"], unique=False)
        batch_op.create_index(
            "ix_ledger_window",
            ["org_id", "resource_type", "begins_at", "last_at", "project_id", "whole", "nano", "atto"],
            unique=False,
        )

    op.create_table(
        "liveness",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("liveness", schema=None) as batch_op:
        batch_op.create_index("ix_liveness_kind_until", ["kind", "until"], unique=False)

    op.create_table(
        "logblob",
        sa.Column("segment", sa.String(), nullable=False),
        sa.Column("doomed", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("segment"),
    )
    with op.batch_alter_table("logblob", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_logblob_created_at"), ["created_at"], unique=False)

    op.create_table(
        "logchunk",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("line_count", sa.Integer(), nullable=False),
        sa.Column("user_lines", sa.Integer(), nullable=False),
        sa.Column("byte_count", sa.BigInteger(), nullable=False),
        sa.Column("first_at", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=True),
        sa.Column("segment", sa.String(), nullable=True),
        sa.Column("blocks", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("logchunk", schema=None) as batch_op:
        batch_op.create_index("ix_logchunk_job_seq", ["job_id", "first_seq"], unique=True)
        batch_op.create_index(batch_op.f("ix_logchunk_last_at"), ["last_at"], unique=False)

    op.create_table(
        "logstate",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("next_seq", sa.BigInteger(), nullable=False),
        sa.Column("user_lines", sa.BigInteger(), nullable=False),
        sa.Column("system_lines", sa.BigInteger(), nullable=False),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=False),
        sa.Column("hot_rows", sa.Integer(), nullable=False),
        sa.Column("hot_bytes", sa.BigInteger(), nullable=False),
        sa.Column("hot_since", sa.BigInteger(), nullable=True),
        sa.Column("trimmed_lines", sa.BigInteger(), nullable=False),
        sa.Column("trimmed_through", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("job_id"),
    )
    with op.batch_alter_table("logstate", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_logstate_hot_since"), ["hot_since"], unique=False)

    op.create_table(
        "logstream",
        sa.Column("instance_id", sa.String(), nullable=False),
        sa.Column("stream", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("acked_offset", sa.BigInteger(), nullable=False),
        sa.Column("line_state", sa.LargeBinary(), nullable=True),
        sa.Column("held", sa.LargeBinary(), nullable=True),
        sa.Column("snapshot_due_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("instance_id", "stream"),
    )
    with op.batch_alter_table("logstream", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_logstream_snapshot_due_at"), ["snapshot_due_at"], unique=False)

    op.create_table(
        "offerrow",
        sa.Column("connection_id", sa.String(), nullable=False),
        sa.Column("offer_id", sa.String(), nullable=False),
        sa.Column("accelerator", sa.String(), nullable=False),
        sa.Column("gpu_count", sa.Integer(), nullable=False),
        sa.Column("interconnect", sa.String(), nullable=True),
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("available", sa.Boolean(), nullable=False),
        sa.Column("offer", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("connection_id", "offer_id"),
    )
    with op.batch_alter_table("offerrow", schema=None) as batch_op:
        batch_op.create_index(
            "ix_offerrow_hardware", ["accelerator", "gpu_count", "connection_id", "offer_id"], unique=False
        )
        batch_op.create_index(
            "ix_offerrow_listing",
            ["connection_id", "offer_id", "accelerator", "gpu_count", "interconnect", "region", "available"],
            unique=False,
        )

    op.create_table(
        "organization",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("provider_anonymity", sa.Boolean(), nullable=False),
        sa.Column("max_live_jobs", sa.Integer(), nullable=True),
        sa.Column("max_live_services", sa.Integer(), nullable=True),
        sa.Column("max_live_service_replicas", sa.Integer(), nullable=True),
        sa.Column("max_live_volumes", sa.Integer(), nullable=True),
        sa.Column("time_zone", sa.String(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "orphansighting",
        sa.Column("provider_id", sa.String(), nullable=False),
        sa.Column("connection_id", sa.String(), nullable=False),
        sa.Column("first_seen_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("provider_id", "connection_id"),
    )
    op.create_table(
        "pricerecord",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("instance_id", sa.String(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("usd_per_hour", sa.Text(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        info={"append_only": True},
    )
    with op.batch_alter_table("pricerecord", schema=None) as batch_op:
        batch_op.create_index("ix_price_instance", ["instance_id", "since"], unique=False)

    op.create_table(
        "project",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("org_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("org_id", "name"),
    )
    with op.batch_alter_table("project", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_project_org_id"), ["org_id"], unique=False)

    op.create_table(
        "retiredkey",
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("retired_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key_id"),
    )
    op.create_table(
        "secret",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("org_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("key_names", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("on_behalf_of", sa.String(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("org_id", "name"),
    )
    with op.batch_alter_table("secret", schema=None) as batch_op:
        batch_op.create_index("ix_secret_org_created", ["org_id", "created_at", "id"], unique=False)

    op.create_table(
        "secretuse",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("secret_id", sa.String(), nullable=False),
        sa.Column("key_names", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "secret_id"),
    )
    with op.batch_alter_table("secretuse", schema=None) as batch_op:
        batch_op.create_index("ix_secretuse_secret", ["secret_id"], unique=False)

    op.create_table(
        "slotwaiter",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("job_created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id"),
    )
    with op.batch_alter_table("slotwaiter", schema=None) as batch_op:
        batch_op.create_index("ix_slotwaiter_line", ["job_created_at", "job_id"], unique=False)

    op.create_table(
        "storage_price",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("usd_per_gib_hour", sa.Text(), nullable=False),
        sa.Column("effective_at", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("version"),
        info={"append_only": True},
    )
    op.create_table(
        "webhook",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("org_id", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("events", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("secret_sealed", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("webhook", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_webhook_org_id"), ["org_id"], unique=False)

    op.create_table(
        "webhookdelivery",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("webhook_id", sa.String(), nullable=False),
        sa.Column("org_id", sa.String(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("settled_at", sa.BigInteger(), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("last_status", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("webhookdelivery", schema=None) as batch_op:
        batch_op.create_index("ix_webhookdelivery_due", ["settled_at", "due_at"], unique=False)
        batch_op.create_index("ix_webhookdelivery_webhook", ["webhook_id", "created_at", "id"], unique=False)

    op.create_table(
        "workflow_inbox",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("dedupe_key", sa.String(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("delivered_at", sa.BigInteger(), nullable=True),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job_id", "dedupe_key"),
    )
    with op.batch_alter_table("workflow_inbox", schema=None) as batch_op:
        batch_op.create_index("ix_inbox_due", ["delivered_at", "due_at", "id"], unique=False)
