#!/bin/sh
# Brings Temporal's two databases to the schema of this admin-tools image. Repeatable; the password is in SQL_PASSWORD.
set -eu

for database in temporal temporal_visibility; do
  case "$database" in
    temporal) versions=/etc/temporal/schema/postgresql/v12/temporal/versioned ;;
    temporal_visibility) versions=/etc/temporal/schema/postgresql/v12/visibility/versioned ;;
  esac
  sql() { temporal-sql-tool --plugin postgres12 --ep postgres -p 5432 -u temporal --db "$database" "$@"; }
  sql setup-schema -v 0.0
  sql update-schema -d "$versions"
done
