"""What is run on a host, as text for bash. Values are quoted here and nowhere else.

On the host: `leases/<name>/` with the files `lease` (a line of organization, devices, owner, time and engine, and a
JSON record), `begun`, `doomed` and `expired`; `seen/<owner>`, touched while that control plane is there;
`agents/<owner>/` with the agent's script and socket, which workloads see; `private/` with marks of repositories.
"""

import hashlib
from collections.abc import Mapping, Sequence
from shlex import quote

FULL, FOREIGN, DOOMED = 75, 76, 77
"""Exit codes of `reserve`: nothing free, another organization's jobs are there, the attempt is being removed."""

_GPU_COLUMNS = "name,memory.total,uuid"


def digest(text: str) -> str:
    """A short name for a longer one: safe in a path and in a line of words."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def call(argv: Sequence[str], environment: Mapping[str, str], seconds: float) -> str:
    """Runs a command, bounded on the host itself."""
    exports = "".join(f"export {name}={quote(value)}\n" for name, value in environment.items())
    return f"{exports}exec timeout -k 5 {seconds:.0f} {' '.join(map(quote, argv))}"


def probe(directory: str, wall: str) -> str:
    """What the host has and what it has promised, one fact on each line. `wall` is that around its workloads."""
    return f"""{wall}
D={quote(directory)}
mkdir -p -m 711 "$D" && mkdir -p -m 700 "$D/leases" "$D/private" || exit 1
echo "cpus $(nproc)"
echo "memory $(sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo)"
echo "disk $(df -k --output=avail "$D" | tail -n 1)"
for engine in docker podman; do
  command -v $engine >/dev/null || {{ echo "rejected $engine: not installed"; continue; }}
  case $engine:$($engine --version 2>/dev/null) in docker:*podman*) continue ;; esac
  form='{{{{.ServerVersion}}}} {{{{.Driver}}}} {{{{.DockerRootDir}}}}'
  [ $engine = docker ] || form='{{{{.Version.Version}}}} {{{{.Store.GraphDriverName}}}} {{{{.Store.GraphRoot}}}}'
  if version=$(timeout 20 $engine info --format "$form" 2>&1); then
    read -r version driver root <<<"${{version##*$'\\n'}}"
    echo "engine $engine $version"
    # What the engines ask for before they bound a container's disk.
    case $driver:$(findmnt --noheadings --output FSTYPE,OPTIONS --target "$root" 2>/dev/null) in
      overlay*:xfs*pquota* | overlay*:xfs*prjquota*) echo "quota xfs" ;;
    esac
    ensure_wall $engine
    break
  fi
  echo "rejected $engine: ${{version##*$'\\n'}}"
done
command -v flock >/dev/null || echo "missing flock"
if ! command -v nvidia-smi >/dev/null; then
  if compgen -G '/dev/nvidia[0-9]*' >/dev/null; then echo "driver there are NVIDIA devices and no nvidia-smi"; fi
elif list=$(timeout 30 nvidia-smi --query-gpu={_GPU_COLUMNS} --format=csv,noheader,nounits 2>&1); then
  while IFS= read -r line; do [ -z "$line" ] || echo "gpu $line"; done <<<"$list"
  version=$(timeout 30 nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null)
  echo "version ${{version%%$'\\n'*}}"
else
  case $list in *"No devices were found"*) ;; *) echo "driver nvidia-smi: ${{list%%$'\\n'*}}" ;; esac
fi
for lease in "$D"/leases/*/lease; do
  [ ! -e "${{lease%lease}}expired" ] || continue
  read -r organization what owner _ 2>/dev/null <"$lease" && echo "lease $organization $what $owner"
done
echo "done"
"""


def reserve(
    directory: str,
    name: str,
    record: str,
    *,
    organization: str,
    owner: str,
    shared: bool,
    gpus: Sequence[str],
    count: int,
    slots: int,
    engine: str,
    lifetime_seconds: int,
    renewed: bool,
    keeper: str,
) -> str:
    """Writes the lease, or prints the one that is there. `count` of the `gpus` are chosen, or one of the `slots`.

    Between all processes of all control planes: under one lock of the host. It lives for `lifetime_seconds` from now,
    or, when it is `renewed`, from the last time that its control plane was there. `keeper` starts the timer.
    """
    until = f"+{lifetime_seconds}" if renewed else f"$(($(date +%s) + {lifetime_seconds}))"
    return f"""
D={quote(directory)} name={quote(name)} organization={quote(organization)} count={count} slots={slots}
candidates=({" ".join(map(quote, gpus))})
mkdir -p -m 711 "$D" && mkdir -p -m 700 "$D/leases" || exit 1
exec 9>"$D/.lock"
flock -w 30 9 || exit 1
mine=$D/leases/$name
if [ -e "$mine/doomed" ]; then exit {DOOMED}; fi
if [ -e "$mine/lease" ]; then cat "$mine/lease"; exit 0; fi
taken=, used=0
for lease in "$D"/leases/*/lease; do
  [ ! -e "${{lease%lease}}expired" ] || continue
  read -r other what _ 2>/dev/null <"$lease" || continue
  if [ {int(shared)} = 0 ] && [ "$other" != "$organization" ]; then exit {FOREIGN}; fi
  if [ "$what" = cpu ]; then used=$((used + 1)); else taken=$taken$what,; fi
done
if [ $count = 0 ]; then
  [ $used -lt $slots ] || exit {FULL}
  what=cpu
else
  what=
  for gpu in "${{candidates[@]}}"; do
    [ $count -gt 0 ] || break
    case $taken in *,"$gpu",*) ;; *) what=${{what:+$what,}}$gpu count=$((count - 1)) ;; esac
  done
  [ $count = 0 ] || exit {FULL}
fi
mkdir -p "$mine" && printf '%s %s %s %s %s\\n%s\\n' \\
  "$organization" "$what" {quote(owner)} "{until}" {quote(engine)} {quote(record)} >"$mine/.draft" &&
  sync "$mine/.draft" && mv "$mine/.draft" "$mine/lease" || exit 1
exec 9>&-
{touch_seen(directory, owner)}
{keeper}
cat "$mine/lease"
"""


def touch_seen(directory: str, owner: str) -> str:
    """The control plane of that owner is there: what is `renewed` lives on."""
    return f"mkdir -p -m 700 {quote(f'{directory}/seen')} && touch {quote(f'{directory}/seen/{owner}')}"


def leases(directory: str, name: str | None = None) -> str:
    """Prints each lease, or that of one name: `name`, then `lease`, `begun`, `doomed` or `expired`, then its lines."""
    pattern = "*" if name is None else quote(name)
    return f"""
cd {quote(directory)}/leases 2>/dev/null || exit 0
for mine in {pattern}; do
  content=$(cat "$mine/lease" 2>/dev/null) || continue
  state=lease
  [ ! -e "$mine/begun" ] || state=begun
  [ ! -e "$mine/doomed" ] || state=doomed
  [ ! -e "$mine/expired" ] || state=expired
  printf '%s %s\\n%s\\n' "$mine" $state "$content"
done
"""


def is_wanted(directory: str, name: str) -> str:
    return f"cd {quote(f'{directory}/leases/{name}')} 2>/dev/null && [ -e lease ] && [ ! -e doomed ]"


def mark_begun(directory: str, name: str) -> str:
    return f"cd {quote(f'{directory}/leases/{name}')} 2>/dev/null || exit 0\n[ ! -e lease ] || : >begun"


def doom(directory: str, name: str) -> str:
    """From here on no start of the attempt goes through; what it holds stays held until it is `forget`ed."""
    return f"cd {quote(f'{directory}/leases/{name}')} 2>/dev/null || exit 0\n: >doomed"


def forget(directory: str, name: str) -> str:
    path = quote(f"{directory}/leases/{name}")
    return f"rm -f {path}/lease && rm -rf {path}"


def prepare_agent(directory: str, owner: str, script_name: str, script: str, engine: str, wall: str) -> str:
    """The directory that workloads see, with the agent's script; the login user's, for sshd makes the socket as it.
    Then the `wall` around their network, whose line is printed."""
    return f"""{wall}
umask 022
D={quote(directory)} mine={quote(f"{directory}/agents/{owner}")} name={quote(script_name)}
mkdir -p -m 711 "$D" && mkdir -p -m 755 "$D/agents" "$mine" || exit 1
if [ ! -e "$mine/$name" ]; then
  printf %s {quote(script)} >"$mine/.$name.$$" && mv "$mine/.$name.$$" "$mine/$name" || exit 1
fi
chown "${{SUDO_UID:-0}}:${{SUDO_GID:-0}}" "$mine" || exit 1
ensure_wall {quote(engine)}
"""


def clear_socket(path: str) -> str:
    """sshd does not bind over what an earlier connection left."""
    return f"umask 022; rm -f {quote(path)}"


def is_private(directory: str, repository: str) -> str:
    return f"[ -e {quote(f'{directory}/private/{digest(repository)}')} ]"


def pull(
    directory: str, argv: Sequence[str], repository: str, credentials: str, seconds: int, *, docker: bool, secret: bool
) -> str:
    """Pulls with credentials in a file that only this pull reads. A repository that took a password is marked before:
    a copy without a mark would be anybody's."""
    mark = f"{directory}/private/{digest(repository)}"
    config = '--config="$secrets"' if docker else ""
    authfile = "" if docker else ' --authfile="$secrets/config.json"'
    head, tail = quote(argv[0]), " ".join(map(quote, argv[1:]))
    return f"""
umask 077
secrets=$(mktemp -d) || exit 1
trap 'rm -rf "$secrets"' EXIT
printf %s {quote(credentials)} >"$secrets/config.json"
new=0
if [ {int(secret)} = 1 ] && [ ! -e {quote(mark)} ]; then
  new=1
  mkdir -p {quote(f"{directory}/private")} && : >{quote(mark)} || exit 1
fi
timeout -k 5 {seconds} {head} {config} pull{authfile} {tail} 2>&1
code=$?
[ $code = 0 ] || [ $new = 0 ] || rm -f {quote(mark)}
exit $code
"""
