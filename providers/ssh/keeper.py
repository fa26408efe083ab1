"""The host's own kill timer, as text for bash: it ends jobs whose control plane does not come back.

One process on the host for all leases, which ends when none is left. A lease says how long its job may live: until a
time, past every limit of the job; or, for a job without limits, so many seconds after its control plane was last there.
What is over is removed with its container, and its lease is marked `expired`: it holds nothing any more, and says what
became of the job to whoever asks. After a restart of the host no container comes back; the timer does with the next
command that starts or looks at jobs.
"""

import hashlib
from shlex import quote

_PROGRAM = r"""
# $1: Headrace's directory on this host; $2: seconds between two looks.
export LC_ALL=C
D=$1
cd "$D/leases" || exit 1
exec 8>>"$D/.keeper"
flock -n 8 || exit 0

is_over() {
  local until=$2 seen
  case $until in
    +*)
      seen=$(stat -c %Y "$D/seen/$1" 2>/dev/null || stat -c %Y "$mine/lease" 2>/dev/null) || return 1
      until=$((seen + ${until#+})) ;;
    '' | *[!0-9]*) return 1 ;;
  esac
  [ "$(date +%s)" -ge "$until" ]
}

# First the mark, so that no start goes through; the devices are free only once the engine has nothing of the name.
end() {
  local patience left
  : >"$mine/doomed"
  [ "$1" = docker ] || patience=--time=0
  timeout -k 5 60 "$1" rm --force --volumes $patience "$mine" </dev/null >/dev/null 2>&1 8>&-
  left=$(timeout -k 5 60 "$1" ps --all --quiet --filter="name=^/?$mine\$" </dev/null 2>/dev/null 8>&-) || return
  if [ -z "$left" ] && [ -e "$mine/lease" ]; then : >"$mine/expired"; fi
}

open_leases() {
  local mine
  for mine in *; do
    [ ! -e "$mine/lease" ] || [ -e "$mine/expired" ] || return 0
  done
  return 1
}

while :; do
  for mine in *; do
    [ -e "$mine/lease" ] && [ ! -e "$mine/expired" ] || continue
    read -r _ _ owner until engine _ 2>/dev/null <"$mine/lease" || continue
    case $engine in docker | podman) ;; *) continue ;; esac
    if is_over "$owner" "$until"; then end "$engine"; fi
  done
  if ! open_leases; then
    # Under the lock that leases are written under: one that comes after this finds no timer, and starts one.
    exec 9>"$D/.lock"
    flock 9
    open_leases || { exec 8>&-; exit 0; }
    exec 9>&-
  fi
  sleep "$2" 8>&-
done
"""


def ensure(directory: str, seconds: float) -> str:
    """Starts the timer where leases are and none runs. Apart from the session that starts it: it outlives its link."""
    file = f"{directory}/keeper-{hashlib.sha256(_PROGRAM.encode()).hexdigest()[:16]}.sh"
    return f"""
ensure_keeper() {{
  local draft={quote(file)}.$$ argv=(bash {quote(file)} {quote(directory)} {seconds:g})
  compgen -G {quote(directory)}'/leases/*/lease' >/dev/null || return 0
  flock -n {quote(directory)}/.keeper true || return 0
  [ -e {quote(file)} ] || {{ printf %s {quote(_PROGRAM)} >"$draft" && mv "$draft" {quote(file)} || return 0; }}
  # Where systemd ends a session's processes with the session, it also has a place for what stays.
  if [ -d /run/systemd/system ] && systemd-run --quiet --collect --description='Headrace: the kill timer of jobs' \\
    "${{argv[@]}}" >/dev/null 2>&1 9>&-; then return 0; fi
  setsid -f "${{argv[@]}}" </dev/null >/dev/null 2>&1 9>&-
}}
ensure_keeper
"""
