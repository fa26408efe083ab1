"""SSH / on-prem: a fleet of hosts of one's own, each with docker or podman.

settings.py   the fleet as it is filled in, and the options
addresses.py  which addresses a fleet may have
hostkeys.py   pins of host keys for one process; workers share theirs, by the context
link.py       the one pooled connection to a host; asyncssh is loaded here, at the first connection
scripts.py    what is run on a host, as text
probe.py      what a host has: the report for people, the machine for offers
leases.py     what a host has promised, kept on the host
keeper.py     the host's own kill timer
wall.py       packet rules on the host, around the network of its workloads
remote.py     a host as the place of a container engine
forward.py    the agent's socket on the host, led to the control plane's
host.py       one host: all of the above
offers.py     what the probed hosts offer
provider.py   the adapter
"""
