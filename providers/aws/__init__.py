"""EC2 through boto3: one virtual machine for an attempt, booted into the host agent. The SDK loads at the first call.

provider.py  the adapter
settings.py  credentials, and the options of a connection
calls.py     boto3 clients in threads; errors.py is what their complaints mean
offers.py    what can be rented; market.py asks AWS for it and for the prices
quotas.py    what the account may rent at most
launch.py    the request that makes an instance; groups.py makes the security group of one that publishes something
reads.py     reads of single instances, gathered
views.py     what AWS says of an instance or of what one left; leftovers.py finds and deletes that
"""
