"""Addresses that are nobody's on the internet: what is around the machine that a workload is on."""

PRIVATE = (
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",  # carriers' own, and the metadata service of Alibaba
    "169.254.0.0/16",  # link-local: the metadata services of most clouds
    "168.63.129.16/32",  # Azure's
    "127.0.0.0/8",
    "224.0.0.0/3",
)
"""Networks as CIDRs. Workloads on machines that are rented, and on hosts of fleets, do not reach them."""
