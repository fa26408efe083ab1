-- Run once, by the PostgreSQL image, when its volume is empty: a role and its own databases for each of the two.
-- The passwords come from the environment, so that they stand in no command line.
\getenv temporal_password TEMPORAL_DB_PASSWORD
\getenv headrace_password APP_DB_PASSWORD

CREATE ROLE temporal LOGIN PASSWORD :'temporal_password';
CREATE ROLE headrace LOGIN PASSWORD :'headrace_password';

CREATE DATABASE temporal OWNER temporal;
CREATE DATABASE temporal_visibility OWNER temporal;
CREATE DATABASE headrace OWNER headrace;

REVOKE CONNECT ON DATABASE temporal, temporal_visibility, headrace FROM PUBLIC;
