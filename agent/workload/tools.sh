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
hr_look=10       # seconds between two looks at whether the helpers live
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
