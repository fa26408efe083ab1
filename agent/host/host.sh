# The Headrace host agent: makes of a fresh Linux machine the home of one workload, as root, once.
#
# The text before this one, put there by `agent.host`, sets hh_url, hh_token, hh_attempt, hh_image, hh_private,
# hh_gpus, hh_ports, hh_open, hh_closed, hh_cloud and hh_lifetime_seconds, and defines hh_agent, which prints the agent. Cloud-init runs the
# whole; so does SSH.
#
#   arm      a timer that powers the machine off, whatever else happens: the provider deletes what powers itself off
#   check    the driver, the engine, the container toolkit
#   pull     the image, with lines of progress to the control plane
#   run      the agent as the command of a container, and the end of the machine after the end of that
#   watch    meanwhile, for the cloud's notice that it takes the machine back
#
# What fails is told three times: to the control plane (/fault), to the console, which the provider shows to whoever
# asks, and by powering off. The token is in no argument: it is in files that only root can read.
# It needs bash >= 4, curl, coreutils and systemd's shutdown. Every global is named hh_*.

hh_root=${HEADRACE_HOST_ROOT:-}
hh_dir=$hh_root/run/headrace
hh_kept=$hh_root/var/lib/headrace
hh_boot_scripts=$hh_root/var/lib/cloud/scripts/per-boot
hh_metadata=${HEADRACE_HOST_METADATA:-http://169.254.169.254}
hh_pull_seconds=5 # between two lines of progress
hh_caps="AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL NET_BIND_SERVICE SETGID SETUID SYS_CHROOT"

# --- what it says -----------------------------------------------------------------------------------------------------

hh_post() { # route, text; best effort
  curl -q -s -f -o /dev/null -K "$hh_dir/curl" --data-binary "$2" "$hh_url/agent/v1/$1"
}

hh_say() { # a line about the boot
  printf 'headrace-host: %s\n' "$1"
  hh_post progress "$1"
}

hh_fault() { # reason, its kind (bootstrap_failed); the end
  local try
  printf 'headrace-agent: fault: %s\n' "$1"
  for try in 1 2 3 4 5; do
    hh_post "fault?kind=${2:-bootstrap_failed}" "$1" && break
    sleep $((try * 2))
  done
  hh_end
}

hh_end() { # in a minute, in which the console and the last words get out
  shutdown -P +1 "headrace: the workload of $hh_attempt has ended" </dev/null
  exit 0
}

# --- arm --------------------------------------------------------------------------------------------------------------

hh_arm() { # the deadline is kept: a reboot forgets a shutdown that was ordered, and arms it again
  mkdir -p "$hh_kept" "$hh_boot_scripts"
  [[ -s $hh_kept/deadline ]] || echo $(($(date +%s) + hh_lifetime_seconds)) >"$hh_kept/deadline"
  cat >"$hh_boot_scripts/headrace-deadline" <<EOF
#!/bin/sh
left=\$((\$(cat "$hh_kept/deadline") - \$(date +%s)))
[ "\$left" -gt 60 ] || exec shutdown -P now
exec shutdown -P +\$((left / 60))
EOF
  chmod 700 "$hh_boot_scripts/headrace-deadline"
  "$hh_boot_scripts/headrace-deadline" </dev/null
}

hh_files() { # what curl and the engine read, on a file system in memory
  mkdir -p -m 700 "$hh_dir"
  printf 'header = "Authorization: Bearer %s"\nconnect-timeout = 5\nmax-time = 15\n' "$hh_token" >"$hh_dir/curl"
  printf 'HEADRACE_TOKEN=%s\nHEADRACE_URL=%s\n' "$hh_token" "$hh_url" >"$hh_dir/env"
  # The workload's root reads it, and may be mapped to somebody else.
  hh_agent >"$hh_dir/agent.sh"
  chmod 755 "$hh_dir/agent.sh"
}

# --- check ------------------------------------------------------------------------------------------------------------

hh_no_upgrades() { # in the middle of a job one would restart docker, or change the driver under it
  systemctl stop unattended-upgrades apt-daily.timer apt-daily-upgrade.timer dnf-automatic.timer 2>/dev/null
}

hh_driver() { # the driver shows as many GPUs as were rented; it may load late
  local try found=0
  ((hh_gpus)) || return
  for try in {1..30}; do
    found=$(nvidia-smi --query-gpu=uuid --format=csv,noheader 2>/dev/null | wc -l)
    ((found >= hh_gpus)) && return
    sleep 4
  done
  command -v nvidia-smi >/dev/null || hh_fault "the machine image has no NVIDIA driver: nvidia-smi is not there"
  hh_fault "the NVIDIA driver shows $((found)) of $hh_gpus GPUs: $(nvidia-smi -L 2>&1 | head -n 3)"
}

hh_engine() { # docker answers, installed if need be
  local try
  if ! command -v docker >/dev/null; then
    hh_say "installing docker"
    hh_install || hh_fault "docker cannot be installed: is there a way out to the distribution's packages?"
  fi
  for try in {1..30}; do
    docker version >/dev/null 2>&1 && return
    systemctl start docker 2>/dev/null
    sleep 2
  done
  hh_fault "docker does not start: $(docker version 2>&1 | tail -n 1)"
}

hh_install() {
  local try
  for try in 1 2 3; do
    if command -v apt-get >/dev/null; then
      # Another apt may be at work in the first minutes of a machine: it is waited for.
      apt-get -o DPkg::Lock::Timeout=300 -q update &&
        DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -q -y install docker.io && return
    else
      dnf -q -y install docker && return
    fi
    sleep 10
  done
  return 1
} >/dev/null 2>&1

hh_toolkit() { # docker can hand GPUs to a container
  ((hh_gpus)) || return
  hh_has_toolkit && return
  command -v nvidia-ctk >/dev/null || hh_fault "the machine image has no NVIDIA container toolkit (nvidia-ctk)"
  nvidia-ctk runtime configure --runtime=docker >/dev/null 2>&1 && systemctl restart docker
  hh_engine
  hh_has_toolkit || hh_fault "docker has no nvidia runtime after nvidia-ctk configured it"
}

hh_has_toolkit() {
  [[ $(docker info --format '{{range $name, $_ := .Runtimes}}{{$name}} {{end}}' 2>/dev/null) == *nvidia* ]]
}

# --- pull -------------------------------------------------------------------------------------------------------------

hh_registry_login() { # the credentials of the image's registry
  # They are never in this text, and in memory only until the image is there.
  local code try config=$hh_dir/docker
  ((hh_private)) || return
  mkdir -p "$config"
  for try in {1..20}; do # nine minutes: the control plane may be away for a while
    code=$(curl -q -s -K "$hh_dir/curl" -o "$config/config.json" -w '%{http_code}' --data-binary '' \
      "$hh_url/agent/v1/registry")
    case $code in
      200) export DOCKER_CONFIG=$config ;;&
      200 | 204) return ;;
      401 | 409) hh_end ;; # the job has ended, or will not be launched
    esac
    sleep $((try > 4 ? 30 : 2 ** try))
  done
  hh_fault "the control plane does not answer what the image's registry wants ($code)"
}

hh_registry_logout() { # before anything of the image runs; the hello also ends the exchange
  local try
  rm -rf "$hh_dir/docker"
  unset DOCKER_CONFIG
  for try in 1 2 3; do
    hh_post hello '' && return
    sleep $((2 ** try))
  done
}

hh_pull() {
  local try last=
  docker image inspect "$hh_image" >/dev/null 2>&1 && return
  hh_registry_login
  hh_say "pulling $hh_image"
  for try in 1 2 3 4 5; do
    hh_pull_once && return
    case $last in # what no repetition changes
      *"manifest unknown"* | *"not found"* | *denied* | *unauthorized*) break ;;
      *"invalid reference"* | *"no matching manifest"* | *"no space left"*) break ;;
    esac
    ((try < 5)) && hh_say "pulling $hh_image failed, once more: $last"
    sleep $((2 ** try))
  done
  hh_fault "the image $hh_image cannot be pulled: $last" image_pull_failed
}

hh_pull_once() { # sets `last` to the engine's last line
  local line layers=0 ready=0 told=$SECONDS rc=1
  while IFS= read -r line; do
    case $line in
      *": Pulling fs layer") layers=$((layers + 1)) ;;
      *": Already exists") layers=$((layers + 1)) ready=$((ready + 1)) ;;
      *": Pull complete") ready=$((ready + 1)) ;;
      "hh_status "*) rc=${line#hh_status } && continue ;;
      "") continue ;;
    esac
    last=${line:0:300}
    if ((SECONDS - told >= hh_pull_seconds)); then
      hh_say "pulling $hh_image: $ready of $layers layers"
      told=$SECONDS
    fi
  done < <(docker pull -- "$hh_image" 2>&1; printf '\nhh_status %d\n' $?)
  ((rc == 0)) || return 1
  hh_say "pulled $hh_image: $layers layers"
  return 0
}

# --- run --------------------------------------------------------------------------------------------------------------

hh_shield() { # containers reach no metadata of the machine, this text among them, but for the resolver there
  local address protocol tool
  for address in 169.254.169.254 fd00:ec2::254 fd20:ce::254; do
    [[ $address == *:* ]] && tool=ip6tables || tool=iptables
    # What a container sends passes there before any rule of docker's; what the machine sends does not.
    if "$tool" -w 10 -t raw -I PREROUTING -d "$address" -j DROP; then
      for protocol in udp tcp; do
        "$tool" -w 10 -t raw -I PREROUTING -d "$address" -p "$protocol" --dport 53 -j ACCEPT
      done
    elif [[ $tool == iptables && -n $hh_cloud ]]; then
      hh_fault "containers cannot be kept from the machine's metadata: iptables fails"
    fi
  done
} 2>/dev/null

hh_wall() { # containers get out to the world, and neither into the machine nor into the private networks around it
  hh_lay_wall || hh_fault "containers cannot be kept from the machine's network: iptables fails"
} 2>/dev/null

hh_lay_wall() { # in PREROUTING, where addresses are yet as they were sent; replies pass, so published ports serve
  local address bridge host port protocol rule=(iptables -w 10 -t mangle)
  bridge=$(docker network inspect --format '{{index .Options "com.docker.network.bridge.name"}}' bridge)
  "${rule[@]}" -N HEADRACE || "${rule[@]}" -F HEADRACE || return
  rule+=(-A HEADRACE)
  "${rule[@]}" -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN || return
  for address in 169.254.169.254 $(hh_resolvers); do
    for protocol in udp tcp; do "${rule[@]}" -d "$address" -p "$protocol" --dport 53 -j RETURN || return; done
  done
  # The agent in the container calls the control plane, which may be in a private network.
  [[ $hh_url =~ ^(https?)://([^/:]+)(:([0-9]+))? ]]
  host=${BASH_REMATCH[2]} port=${BASH_REMATCH[4]}
  [[ -n $port ]] || { [[ ${BASH_REMATCH[1]} == https ]] && port=443 || port=80; }
  for address in $(getent ahostsv4 "$host" | cut -d ' ' -f 1 | sort -u); do
    "${rule[@]}" -d "$address" -p tcp --dport "$port" -j RETURN || return
  done
  "${rule[@]}" -m addrtype --dst-type LOCAL -j DROP || return
  for address in $hh_open; do "${rule[@]}" -d "$address" -j RETURN || return; done
  for address in $hh_closed; do "${rule[@]}" -d "$address" -j DROP || return; done
  ip6tables -w 10 -t mangle -I PREROUTING -i "${bridge:-docker0}" -j DROP
  iptables -w 10 -t mangle -I PREROUTING -i "${bridge:-docker0}" -j HEADRACE
}

hh_resolvers() {
  cat "$hh_root/etc/resolv.conf" "$hh_root/run/systemd/resolve/resolv.conf" |
    sed -n 's/^nameserver *\([0-9.]*\) *$/\1/p' | sort -u
}

hh_run() {
  local arguments cap memory port said status watcher
  arguments=(run --detach --name "$hh_attempt" --restart=no --cap-drop=ALL)
  for cap in $hh_caps; do arguments+=(--cap-add="$cap"); done
  arguments+=(--security-opt=no-new-privileges --pids-limit=32768 --log-driver=json-file --log-opt=max-size=10m)
  read -r _ memory _ <"$hh_root/proc/meminfo"
  arguments+=(--shm-size="$((memory / 2))k") # data loaders pass their batches in it
  ((hh_gpus)) && arguments+=(--gpus=all --ulimit=memlock=-1 --ulimit=stack=67108864)
  for port in $hh_ports; do arguments+=(--publish="$port/tcp"); done
  arguments+=(--env-file="$hh_dir/env" --volume="$hh_dir/agent.sh:/headrace-agent.sh:ro" --entrypoint=bash)
  hh_shield
  hh_wall
  hh_say "starting the container"
  if ! said=$(docker "${arguments[@]}" "$hh_image" /headrace-agent.sh 2>&1 >/dev/null); then
    hh_fault "the container does not start: ${said: -300}"
  fi
  hh_watch &
  watcher=$!
  hh_wait
  kill "$watcher" 2>/dev/null
  printf 'headrace-host: the container ended with %s\n' "$status"
  # Only the agent's own words: what the workload prints goes to the control plane.
  [[ $status == 0 ]] || docker logs --tail 20 "$hh_attempt" 2>&1
  hh_end
}

hh_wait() { # sets `status`; an engine that restarts forgets who waits, and may have left the container running
  until status=$(docker wait "$hh_attempt" 2>/dev/null) && [[ $status == [0-9]* ]]; do
    sleep 5
    if docker version >/dev/null 2>&1 && ! docker container inspect "$hh_attempt" >/dev/null 2>&1; then
      status="its removal"
      return
    fi
  done
}

# --- watch ------------------------------------------------------------------------------------------------------------

hh_watch() { # until the notice; then the control plane is told, and the workload as long as it runs
  local at= hinted=
  [[ -n $hh_cloud ]] || return
  until "hh_noticed_$hh_cloud"; do sleep 5; done
  printf 'headrace-host: the provider takes this machine back%s\n' "${at:+ at $at}"
  hh_tell "notice${at:+?at=$at}" &
  while :; do # the agent of a container that has just begun may not hear it yet
    docker kill --signal=USR1 "$hh_attempt" >/dev/null 2>&1
    sleep 5
  done
}

hh_tell() { # route; until it is heard
  local code try
  for try in {1..60}; do
    code=$(curl -q -s -o /dev/null -w '%{http_code}' -K "$hh_dir/curl" --data-binary '' "$hh_url/agent/v1/$1")
    [[ $code == [24]?? ]] && return
    sleep 2
  done
}

hh_noticed_aws() { # sets `at`; a spot machine has two minutes from the notice on
  local token answer
  token=$(hh_ask latest/api/token -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60') || return
  token="X-aws-ec2-metadata-token: $token"
  if [[ -z $hinted ]] && hh_ask latest/meta-data/events/recommendations/rebalance -H "$token" >/dev/null; then
    hinted=1
    hh_tell 'notice?kind=risk' &
  fi
  answer=$(hh_ask latest/meta-data/spot/instance-action -H "$token") || return
  [[ ! $answer =~ \"time\":\ *\"([0-9TZ:-]+)\" ]] || at=${BASH_REMATCH[1]}
}

hh_noticed_gcp() { # a spot machine has 30 seconds: the first question is held for 5 and answered when something changes
  local path=computeMetadata/v1/instance flavor='Metadata-Flavor: Google'
  [[ $(hh_ask "$path/preempted?wait_for_change=true&timeout_sec=5" -H "$flavor") == TRUE ]] && return
  [[ $(hh_ask "$path/maintenance-event" -H "$flavor") == TERMINATE_ON_HOST_MAINTENANCE ]]
}

hh_ask() { # path, curl's options; what the metadata say
  curl -q -s -f -m 10 --noproxy '*' "${@:2}" "$hh_metadata/$1"
}

hh_main() {
  umask 077
  export HOME=${HOME:-/root}
  export PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
  hh_arm
  hh_files
  hh_no_upgrades
  hh_driver
  hh_engine
  hh_toolkit
  hh_pull
  hh_registry_logout
  hh_run
}

if [[ ${1:-} != run ]] && command -v systemd-run >/dev/null; then
  # A boot ends when its scripts have: the work goes on as a unit of its own, whose words go to the console.
  exec systemd-run --unit=headrace-host -p StandardOutput=journal+console -p StandardError=journal+console \
    /bin/bash "$0" run
fi
hh_main
