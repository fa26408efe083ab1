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
