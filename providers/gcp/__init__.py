"""Compute Engine through google-cloud-compute: one virtual machine for an attempt, booted into the host agent. The SDK
loads at the first call.

provider.py  the adapter
settings.py  credentials, and the options of a connection
calls.py     the SDK's clients in threads; errors.py is what their complaints mean
offers.py    what can be rented; prices.py reads SKUs, market.py asks Google for both
launch.py    the request that makes an instance
disks.py     the disk that an instance may leave behind; firewall.py lets users in to its ports
views.py     what Google says of an instance, a disk or an operation
"""
