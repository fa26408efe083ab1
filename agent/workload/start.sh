# --- start ------------------------------------------------------------------------------------------------------------

hr_prepare() { # takes the agent's variables out of the environment, looks at the image, makes the private directory
  local tool uuid
  hr_token=$HEADRACE_TOKEN hr_socket=$HEADRACE_SOCKET hr_url=$HEADRACE_URL hr_idle=$HEADRACE_IDLE_AFTER_EXIT
  unset HEADRACE_TOKEN HEADRACE_SOCKET HEADRACE_URL HEADRACE_IDLE_AFTER_EXIT
  [[ -n $hr_socket ]] && hr_url=http://headrace
  hr_url=${hr_url%/}/agent/v1
  hr_nonce=

  ((BASH_VERSINFO[0] >= 4)) || hr_fault "bash $BASH_VERSION is too old: the agent needs bash 4 or later"
  ((EUID == 0)) || hr_fault "the image runs as user $EUID: the agent needs root"
  for tool in curl base64 cat dd mkdir mkfifo rm tail timeout; do
    command -v "$tool" >/dev/null || hr_fault "the image has no $tool: the agent needs bash, curl and GNU coreutils"
  done
  [[ -n $hr_token ]] || hr_fault "HEADRACE_TOKEN is not set"

  if read -r uuid </proc/sys/kernel/random/uuid; then
    hr_nonce=${uuid//-/}
  else
    hr_nonce=$(od -An -N16 -tx1 /dev/urandom)
    hr_nonce=${hr_nonce//[[:space:]]/}
  fi 2>/dev/null
  # The second line of this file is the umask, where the kernel is new enough to say it without a process.
  { read -r _ && read -r _ hr_umask; } </proc/self/status
  [[ $hr_umask =~ ^0[0-7]+$ ]] || hr_umask=$(umask)
  umask 077
  # Not /tmp, if there is a choice: workloads empty it.
  for hr_dir in "${TMPDIR:-/run}" /run /var/tmp /tmp /dev/shm ""; do
    [[ -n $hr_dir ]] || hr_fault "no directory can be written: tried TMPDIR, /run, /var/tmp, /tmp and /dev/shm"
    hr_dir=$hr_dir/headrace-$hr_nonce
    mkdir "$hr_dir" 2>/dev/null && break
  done
  mkfifo "$hr_dir/events" "$hr_dir/never" "$hr_dir/stdout" "$hr_dir/stderr" || hr_fault "mkfifo failed in $hr_dir"
  exec 8<>"$hr_dir/events" 9<>"$hr_dir/never"
}

hr_fetch_launch() { # gets and reads the launch spec, however long the control plane is away
  local code rc
  hr_delay=100
  hr_curl_config "$hr_token" >"$hr_dir/curl"
  while :; do
    code=$(curl -q -s -K "$hr_dir/curl" -o "$hr_dir/launch" -w '%{http_code}' --data-binary '' "$hr_url/launch")
    rc=$?
    case $code in
      200) break ;;
      409) hr_leave 0 ;;
      401 | 403) # not a fault of the image, and perhaps another agent's launch: only said here
        hr_refuse "the control plane refused the launch ($code)"
        ;;
      400 | 404 | 422 | 426) hr_fault "the control plane does not speak protocol 1 ($code)" ;;
    esac
    case $rc in
      2) hr_fault "curl is too old: $(curl --version | head -n 1)" ;;
      35 | 60 | 77) hr_fault "curl does not trust the control plane ($rc): has the image CA certificates?" ;;
    esac
    hr_back_off $hr_delay
    hr_longer $hr_delay
  done
  source "$hr_dir/launch"
  if ((hr_payload_line)); then
    tail -n "+$hr_payload_line" "$hr_dir/launch" | base64 -d >"$hr_dir/script" || hr_refuse "no room for the script"
  fi
  : >"$hr_dir/launch" # it holds the user's secrets
  hr_token=
  hr_curl_config "$hr_session" >"$hr_dir/curl"
}

hr_refuse() { # reason; from the launch on, the bootstrap token tells of nothing: only said here
  printf 'headrace-agent: fault: %s\n' "$1" >&2
  hr_leave 211
}

hr_leave() { # status
  rm -rf "$hr_dir"
  hr_finish "$1"
}
