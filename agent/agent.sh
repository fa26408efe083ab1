#!/bin/bash
# The Headrace agent, protocol 1: the command of every workload, whatever the backend.
#
# It fetches the launch spec, runs the user's argv or script exactly as given, ships what it prints with byte offsets,
# obeys orders, and reports how it ended until that is acknowledged. It needs bash >= 4, curl, GNU coreutils and root.
#
# Environment: HEADRACE_TOKEN, and HEADRACE_SOCKET (path of the control plane's Unix socket) or HEADRACE_URL;
# HEADRACE_IDLE_AFTER_EXIT=1 where the backend starts a finished command again.
# SIGUSR1 says that the machine is about to be taken back: the workload gets SIGTERM, and the exit report says so.
# Exit status: 0 once the result is acknowledged or the job was stopped; 211 after `headrace-agent: fault: <reason>`.
#
# One process, the main one, owns all state: it reads one-line events from a FIFO (descriptor 8). Around it run
#   a supervisor   runs the workload as a job of its own:     pid <pid>, then exit <status> <signal>
#   two readers    stdout and stderr FIFOs into piece files:  piece <stream> <number> <bytes>, then eof <stream>
#   a poller       holds the poll for orders:                 stop | revoked
#   a sender       at most one at a time, a curl:             sent
#   timers         the end of a delay:                        tick | close | deadline
#   a trap         the machine is about to be taken back:     interrupted
#   the main one   when it finds a helper killed:             lost | unsent <pid>
# Descriptor 9 is a FIFO that nobody writes: reading it with a time-out is a sleep without a process.
# Every global is named hr_*: a plain name could be a variable of the image's environment, which the workload inherits.

hr_chunk=1048576 # most bytes in one request, and in one piece
hr_read=65536    # what a pipe holds, hence the most that one read returns

# --- small tools ------------------------------------------------------------------------------------------------------

hr_pause() { # milliseconds
  local seconds
  printf -v seconds '%d.%03d' $(($1 / 1000)) $(($1 % 1000))
  read -r -t "$seconds" -u 9
}

hr_after() { # milliseconds, event
  { hr_pause "$1"; echo "$2" >&8; } &
}

hr_back_off() { # milliseconds; between half of it and all of it, so that agents do not come back in step
  hr_pause $(($1 / 2 + RANDOM % ($1 / 2 + 1)))
}

hr_longer() { # milliseconds -> hr_delay, doubled up to 5 s
  hr_delay=$(($1 * 2 > 5000 ? 5000 : $1 * 2))
}

hr_curl_config() { # token -> options of every request, kept off the command line
  if [[ -n $hr_socket ]]; then
    printf 'unix-socket = "%s"\nnoproxy = "*"\n' "$hr_socket"
  fi
  printf 'header = "Authorization: Bearer %s"\nheader = "Headrace-Protocol: 1"\n' "$1"
  printf 'header = "Headrace-Nonce: %s"\nheader = "Expect:"\nconnect-timeout = 5\nmax-time = 60\n' "$hr_nonce"
}

hr_finish() { # status; the end of the agent, or its sleep where ending would start it again
  if [[ $hr_idle == 1 ]]; then
    while :; do sleep 3600; done
  fi
  exit "$1"
}

hr_fault() { # reason; the image or its environment cannot run the agent
  printf 'headrace-agent: fault: %s\n' "$1" >&2
  if [[ -n $hr_token ]] && command -v curl >/dev/null; then
    curl -q -s -o /dev/null -m 10 -K - --data-binary "$1" "$hr_url/fault" <<<"$(hr_curl_config "$hr_token")"
  fi
  hr_finish 211
}

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

hr_open_ssh() { # best effort: an image without sshd, or with one that will not start, runs all the same
  exec </dev/null >/dev/null 2>&1 8>&-
  local home=~root key=$hr_dir/host_key public= sshd
  mkdir -p "$home/.ssh"
  chmod 700 "$home/.ssh"
  printf '%s\n' "$hr_ssh_key" >"$home/.ssh/authorized_keys"
  chmod 600 "$home/.ssh/authorized_keys"
  PATH=$PATH:/usr/sbin:/sbin
  mkdir -p -m 755 /run/sshd
  # Its host key is made here: whoever has the image has those that are in it. Nobody gets in but by the user's key.
  if sshd=$(command -v sshd) && ssh-keygen -q -t ed25519 -N '' -C '' -f "$key" &&
    "$sshd" -h "$key" -p 22 -o PermitRootLogin=prohibit-password -o PubkeyAuthentication=yes -o UsePAM=no \
      -o PasswordAuthentication=no -o KbdInteractiveAuthentication=no -o AuthorizedKeysFile=.ssh/authorized_keys 9>&-
  then
    read -r public <"$key.pub"
  fi
  hr_delay=100
  while hr_post_from_memory ssh "$public"; [[ $hr_code != [24]?? ]]; do
    hr_back_off $hr_delay
    hr_longer $hr_delay
  done
}

# --- the workload -----------------------------------------------------------------------------------------------------

hr_workload() { # becomes the user's process; everything that the agent set is undone before
  exec </dev/null >"$hr_dir/stdout" 2>/dev/null 8>&- 9>&-
  local prefix=()
  ((${#hr_odd_env[@]})) && prefix=("$(type -P env)" -- "${hr_odd_env[@]}")
  umask "$hr_umask"
  if [[ -n ${hr_lc_all+set} ]]; then LC_ALL=$hr_lc_all; else unset LC_ALL; fi
  hr_export
  exec 2>"$hr_dir/stderr"
  if [[ ${hr_argv[0]} != */* ]] && ! type -P -- "${hr_argv[0]}" >/dev/null; then
    printf 'headrace: %s: command not found\n' "${hr_argv[0]}" >&2
    exit 127
  fi
  exec -- "${prefix[@]}" "${hr_argv[@]}"
}

hr_supervise() { # runs the workload in a process group of its own and says how it ended
  local pid status signal=0 notice
  exec </dev/null >/dev/null 2>>"$hr_dir/notice"
  set -m
  hr_workload &
  pid=$!
  echo "pid $pid" >&8
  while :; do
    wait "$pid"
    status=$?
    # With job control a wait also ends when the job is stopped (SIGSTOP): then the process is still there.
    kill -0 "$pid" 2>/dev/null || break
    hr_pause 200
    : >"$hr_dir/notice"
  done
  kill -KILL -- "-$pid" 2>/dev/null
  # Only a job that died of a signal is announced by its name ("Killed"); a status of 128 + n is not, or as "Exit".
  jobs >&2
  read -r -d '' notice <"$hr_dir/notice"
  [[ -z $notice || $notice == *Exit* || $notice == *Done* ]] || signal=$((status - 128))
  echo "exit $status $signal" >&8
}

# --- output -----------------------------------------------------------------------------------------------------------

hr_copy() { # reader's: one dd from the FIFO to $1; sets `bytes`, and `rc`
  local number unit
  bytes=
  if ((bulk)); then
    # Sixteen full reads, for a tenth of the processes; interrupted when the flood stops before they are full.
    timeout --foreground -s INT 0.3 dd bs=$hr_read count=$((hr_chunk / hr_read)) of="$1" 2>"$stream.copied"
  else
    dd bs=$hr_read count=1 of="$1" 2>"$stream.copied"
  fi
  rc=$?
  while read -r number unit; do
    [[ $unit == byte* ]] && bytes=$number
  done <"$stream.copied"
  [[ -n $bytes || $1 == /dev/null ]] || bytes=$(wc -c <"$1")
  bytes=$((bytes))
}

hr_keep() { # reader's: `bytes` bytes are in the file of piece `piece`
  echo "piece $stream $piece $bytes" >&8
  produced=$((produced + bytes)) piece=$((piece + 1))
}

hr_mark_dropped() { # reader's: the count of what was dropped, in band, on a line of its own
  local text="[headrace] $dropped bytes of output dropped: more than $hr_spool_bytes bytes were waiting to be sent"
  [[ $(tail -c 1 "$stream.$((piece - 1))" 2>/dev/null; echo x) == $'\nx' ]] || text=$'\n'$text
  printf '%s\n' "$text" >"$stream.$piece"
  bytes=$((${#text} + 1)) dropped=0
  hr_keep
}

hr_read_stream() { # stream; each read becomes a piece, as long as there is room for it
  local stream=$1 room=$((hr_spool_bytes / 2)) piece=0 produced=0 acked=0 dropped=0 bulk=0 second=0 reads=0
  local bytes rc seen free
  exec 2>/dev/null <"$stream"
  while :; do
    read -r seen <"$stream.acked" && acked=$seen
    free=$((room - produced + acked))
    # Once full, it drops until half is free again: a few large gaps, not many small ones.
    if ((free < (dropped ? room / 2 : hr_read))); then
      hr_copy /dev/null
      dropped=$((dropped + bytes))
    else
      ((dropped)) && hr_mark_dropped
      ((free < hr_chunk)) && bulk=0
      hr_copy "$stream.$piece"
      ((bytes)) && hr_keep
    fi
    if ((rc == 0 && bytes == 0)); then
      ((dropped)) && hr_mark_dropped
      echo "eof $stream" >&8
      return
    fi
    if ((rc != 0 && rc != 124)); then
      # The disk is full: what a failed write held is lost, at most one read. There is room for no more than this.
      room=$((produced - acked)) dropped=$((dropped + hr_read))
      hr_pause 200
    fi
    bulk=$((bytes >= hr_read))
    # Many small writes: let the pipe gather some, instead of starting a process for each of them.
    if ((bulk)) || ((SECONDS != second)); then
      second=$SECONDS reads=0
    elif ((++reads > 10)); then
      hr_pause 100
    fi
  done
}

# --- orders -----------------------------------------------------------------------------------------------------------

hr_poll_orders() { # being held is the sign of life; a short job ends before the first poll
  local answer
  hr_delay=100
  hr_pause 200
  while :; do
    answer=$(curl -q -s -K curl -m $((hr_orders_wait + 15)) -w ' %{http_code}' "$hr_url/orders?wait=$hr_orders_wait")
    case $answer in
      "stop 200")
        echo stop >&8
        return
        ;;
      "none 200") hr_delay=100 ;;
      *revoked*" 401")
        echo revoked >&8
        return
        ;;
      *)
        hr_back_off $hr_delay
        hr_longer $hr_delay
        ;;
    esac
  done
}

# --- shipping ---------------------------------------------------------------------------------------------------------

hr_add_request() { # name, path, body
  ((${#hr_names[@]})) && hr_request+=(--next)
  hr_request+=(-s -K curl -o "reply.$1" -w '%{http_code}\n' --data-binary "$3" "$hr_url/$2")
  hr_names+=("$1")
}

hr_add_output() { # stream; its oldest pieces, up to one chunk of them
  local stream=$1 piece bytes total=0 files=""
  for ((piece = hr_first[$stream]; piece < hr_next[$stream]; piece++)); do
    bytes=${hr_bytes[$stream.$piece]}
    ((total && total + bytes > hr_chunk)) && break
    total=$((total + bytes)) files+=" $stream.$piece"
  done
  ((total)) || return
  hr_merge[$stream]=
  if ((piece > hr_first[$stream] + 1)); then
    hr_merge[$stream]=$files files=" body.$stream"
  fi
  hr_add_request "$stream" "logs/$stream?offset=$((hr_start[$stream] + hr_shift[$stream]))" "@${files# }"
}

hr_dispatch() { # one curl for all that there is to say
  local stream stdout stderr
  hr_request=() hr_names=() hr_merge=()
  if ((hr_started)) && [[ -z $hr_exit ]]; then
    hr_add_request started started ''
  fi
  for stream in stdout stderr; do hr_add_output $stream; done
  if [[ $hr_exit_stored == 0 ]] && hr_all_read; then
    stdout=$((hr_end[stdout] + hr_shift[stdout])) stderr=$((hr_end[stderr] + hr_shift[stderr]))
    hr_add_request exit exit "$hr_exit&stdout=$stdout&stderr=$stderr"
  fi
  hr_busy=1 hr_events=0 hr_due=0 hr_hold=$((hr_hold * 2 > 320 ? 320 : hr_hold * 2))
  hr_send &
  hr_sender=$! hr_garbage=
}

hr_send() {
  local stream codes
  [[ -n $hr_garbage ]] && rm -f $hr_garbage
  for stream in stdout stderr; do
    [[ -n ${hr_merge[$stream]} ]] && cat ${hr_merge[$stream]} >"body.$stream"
  done
  curl -q "${hr_request[@]}" >codes 2>/dev/null
  read -r -d '' codes <codes
  # While it waits here it is busy, so that the next attempt is not made earlier.
  [[ $codes =~ ^(200[[:space:]]*)+$ ]] || hr_back_off $hr_delay
  echo sent >&8
}

hr_take_replies() {
  local name code offset failed=0
  for name in "${hr_names[@]}"; do
    code= offset=
    read -r code
    case $name:$code in
      started:200) hr_started=0 ;;
      exit:200) hr_exit_stored=1 ;;
      std*:200 | std*:409)
        read -r offset <"reply.$name"
        [[ $offset =~ ^[0-9]+$ ]] && hr_acknowledge "$name" "$offset"
        [[ $code == 200 ]] || failed=1
        ;;
      *) failed=1 ;;
    esac
  done <codes
  if ((failed)); then hr_longer $hr_delay; else hr_delay=100; fi
  hr_busy=0 hr_sent_at=$SECONDS
}

hr_acknowledge() { # stream, offset in the server's count
  local stream=$1 offset=$(($2 - hr_shift[$1])) bytes
  while ((hr_first[$stream] < hr_next[$stream])); do
    bytes=${hr_bytes[$stream.${hr_first[$stream]}]}
    ((hr_start[$stream] + bytes <= offset)) || break
    unset "hr_bytes[$stream.${hr_first[$stream]}]"
    hr_garbage+=" $stream.${hr_first[$stream]}"
    hr_start[$stream]=$((hr_start[$stream] + bytes)) hr_first[$stream]=$((hr_first[$stream] + 1))
  done
  ((offset < hr_start[$stream])) && hr_resume_behind "$stream" "$2"
  echo "${hr_start[$stream]}" >"$stream.acked"
}

hr_resume_behind() { # stream, offset; the server lost what it had acknowledged (a restored database): it is gone
  local stream=$1 lost=$((hr_start[$1] + hr_shift[$1] - $2)) piece=$((hr_first[$1] - 1)) text
  text=$'\n'"[headrace] $lost bytes of output lost: the server has gone back behind what it had acknowledged"
  printf '%s\n' "$text" >"$stream.$piece"
  hr_garbage=${hr_garbage/" $stream.$piece"/}
  hr_bytes[$stream.$piece]=$((${#text} + 1))
  hr_start[$stream]=$((hr_start[$stream] - ${#text} - 1)) hr_first[$stream]=$piece
  hr_shift[$stream]=$(($2 - hr_start[$stream]))
}

# --- the main process -------------------------------------------------------------------------------------------------

hr_all_read() { # the workload has ended and all that it wrote is known
  [[ -n $hr_exit && -n ${hr_eof[stdout]} && -n ${hr_eof[stderr]} ]]
}

hr_anything_to_send() {
  ((hr_started || hr_first[stdout] < hr_next[stdout] || hr_first[stderr] < hr_next[stderr])) && return
  hr_all_read && ((hr_exit_stored == 0))
}

hr_must_send_now() { # nothing more is to be expected, or a request is full, or small things have gathered for long
  hr_all_read || ((hr_events >= 16)) ||
    ((hr_end[stdout] - hr_start[stdout] >= hr_chunk || hr_end[stderr] - hr_start[stderr] >= hr_chunk))
}

hr_finished() {
  ((hr_over || hr_exit_stored && hr_first[stdout] == hr_next[stdout] && hr_first[stderr] == hr_next[stderr]))
}

hr_kill_workload() { # limits and terminates know no grace; what was printed is sent for 5 seconds at most
  ((hr_stopped)) || hr_after 5000 deadline
  hr_stopped=1
  [[ -n $hr_pid ]] && kill -KILL -- "-$hr_pid"
}

hr_tell_workload() { # that its machine is taken back: it may store what it has and end, within what is left of the time
  [[ -z $hr_pid ]] || kill -TERM -- "-$hr_pid"
}

hr_take_loss() { # nobody knows how the workload ended, or whether it has
  [[ -z $hr_pid ]] || kill -KILL -- "-$hr_pid"
  hr_handle exit 137 9
}

hr_close_streams() { # a process that left the group still holds a pipe: the job does not wait for it
  hr_all_read && return
  kill -KILL -- "-$hr_reader_stdout" "-$hr_reader_stderr"
  # Behind all that the readers have announced so far.
  printf 'eof stdout\neof stderr\n' >&8
}

hr_end_in_ruins() { # the workload removed the agent's files: what was not sent is lost, but not that it ended
  local delay=100 text=$'\n[headrace] the agent\'s files were removed: the workload is ended, and output is lost\n'
  hr_kill_workload
  kill -KILL -- "-$hr_supervisor" "-$hr_reader_stdout" "-$hr_reader_stderr" "-$hr_poller"
  local stdout=$((hr_start[stdout] + hr_shift[stdout])) stderr=$((hr_start[stderr] + hr_shift[stderr]))
  hr_post_from_memory "logs/stderr?offset=$stderr" "$text"
  [[ $hr_code != 200 ]] || stderr=$((stderr + ${#text}))
  until [[ $hr_code == 401 ]] || ! command -v curl >/dev/null; do
    hr_post_from_memory exit "${hr_exit:-status=137&signal=9}&stdout=$stdout&stderr=$stderr"
    [[ $hr_code != 200 ]] || break
    hr_back_off $delay
    hr_longer $delay
    delay=$hr_delay
  done
  hr_over=1
}

hr_post_from_memory() { # path, body -> hr_code
  hr_code=$(hr_curl_config "$hr_session" |
    curl -q -s -K - -o /dev/null -w '%{http_code}' --data-binary "$2" "$hr_url/$1")
}

hr_next_event() { # -> hr_event. The time-out is for its first byte only: it could cut a line in two, and lose one
  local first rest
  hr_event=
  if read -r -N 1 -t 10 -u 8 first; then
    read -r rest <&8
    hr_event=$first$rest
  fi
}

hr_check_helpers() { # a workload that kills all processes that it sees must not leave a job without an end
  ((SECONDS - hr_checked_at >= 10)) || return
  hr_checked_at=$SECONDS
  if [[ ! -e curl ]]; then
    hr_end_in_ruins
    return
  fi
  # Behind what the helper may have said before it ended.
  [[ -n $hr_exit ]] || kill -0 "$hr_supervisor" || echo lost >&8
  ((!hr_busy)) || kill -0 "$hr_sender" || echo "unsent $hr_sender" >&8
  if ((!hr_stopped)) && ! kill -0 "$hr_poller"; then
    hr_poll_orders &
    hr_poller=$!
  fi
}

hr_handle() { # event, and its words
  case $1 in
    piece)
      hr_bytes[$2.$3]=$4 hr_next[$2]=$(($3 + 1)) hr_end[$2]=$((hr_end[$2] + $4)) hr_events=$((hr_events + 1))
      ;;
    eof) hr_eof[$2]=1 ;;
    sent) hr_take_replies ;;
    pid)
      hr_pid=$2
      ((hr_interrupted)) && hr_tell_workload
      ((hr_stopped)) && hr_kill_workload
      ;;
    exit)
      hr_exit="status=$2&signal=$3&interrupted=$hr_interrupted" hr_pid= hr_started=0
      hr_all_read || hr_after 1500 close
      ;;
    lost) [[ -n $hr_exit ]] || hr_take_loss ;;
    unsent) [[ $2 != "$hr_sender" ]] || hr_busy=0 ;;
    close) hr_close_streams ;;
    stop) hr_kill_workload ;;
    interrupted) # told again and again, heard once
      ((hr_interrupted)) || hr_tell_workload
      hr_interrupted=1
      ;;
    deadline) hr_over=1 ;;
    tick) hr_ticking=0 hr_due=1 ;;
    revoked) # this instance counts as gone: nothing that it says is heard any more
      hr_kill_workload
      hr_over=1
      ;;
  esac
}

hr_follow() { # until the end is acknowledged
  declare -A hr_first=([stdout]=0 [stderr]=0) hr_next=([stdout]=0 [stderr]=0) hr_start=([stdout]=0 [stderr]=0)
  declare -A hr_end=([stdout]=0 [stderr]=0) hr_shift=([stdout]=0 [stderr]=0) hr_bytes=() hr_eof=() hr_merge=()
  hr_started=1 hr_exit= hr_exit_stored=0 hr_pid= hr_stopped=0 hr_interrupted=0 hr_over=0
  hr_busy=0 hr_events=0 hr_due=0 hr_ticking=0 hr_hold=40 hr_delay=100 hr_garbage= hr_sent_at=0 hr_checked_at=$SECONDS
  until hr_finished; do
    if ((!hr_busy)) && hr_anything_to_send; then
      if ((hr_due)) || hr_must_send_now; then
        hr_dispatch
      elif ((!hr_ticking)); then
        ((SECONDS - hr_sent_at > 1)) && hr_hold=40
        hr_ticking=1
        hr_after $hr_hold tick
      fi
    fi
    hr_next_event
    [[ -z $hr_event ]] || hr_handle $hr_event
    hr_check_helpers
  done
}

hr_main() {
  [[ -n ${LC_ALL+set} ]] && hr_lc_all=$LC_ALL
  export LC_ALL=C
  hr_prepare
  hr_fetch_launch
  exec 2>/dev/null # job control announces every helper that ends
  set -m
  if [[ -n $hr_ssh_key ]]; then hr_open_ssh & fi
  hr_supervise &
  hr_supervisor=$!
  cd "$hr_dir" || hr_leave 211
  hr_read_stream stdout &
  hr_reader_stdout=$!
  hr_read_stream stderr &
  hr_reader_stderr=$!
  hr_poll_orders &
  hr_poller=$!
  trap 'echo interrupted >&8' USR1
  hr_follow
  for hr_job in $(jobs -p); do kill -KILL -- "-$hr_job"; done
  cd /
  hr_leave 0
}

hr_main
