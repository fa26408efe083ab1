#!/bin/sh
# The namespace with its retention, and the search attributes that workflows set. Repeatable.
# TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE: read by the `temporal` command itself.
set -eu

retention=720h

if temporal operator namespace describe --namespace "$TEMPORAL_NAMESPACE" >/dev/null 2>&1; then
  temporal operator namespace update --namespace "$TEMPORAL_NAMESPACE" --retention "$retention"
else
  temporal operator namespace create --namespace "$TEMPORAL_NAMESPACE" --retention "$retention"
fi

# A namespace that was just made is seen by all of the server's parts a few seconds later.
tries=30
until temporal operator search-attribute list >/dev/null 2>&1; do
  tries=$((tries - 1))
  [ "$tries" -gt 0 ] || { echo "the namespace $TEMPORAL_NAMESPACE does not become ready" >&2; exit 1; }
  sleep 1
done
temporal operator search-attribute create \
  --name HeadraceState --type Keyword \
  --name HeadraceOrganization --type Keyword \
  --name HeadraceProject --type Keyword
