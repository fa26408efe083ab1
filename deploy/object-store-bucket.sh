#!/bin/sh
# The bucket for log segments. Repeatable; AWS_* and S3_BUCKET come from the environment.
set -eu

aws s3api head-bucket --bucket "$S3_BUCKET" 2>/dev/null || aws s3api create-bucket --bucket "$S3_BUCKET"
