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
  if read -r -N 1 -t $hr_look -u 8 first; then
    read -r rest <&8
    hr_event=$first$rest
  fi
}

hr_check_helpers() { # a workload that kills all processes that it sees must not leave a job without an end
  ((SECONDS - hr_checked_at >= hr_look)) || return
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
