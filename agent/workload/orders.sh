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
