"""RunPod: pods on its secure and community clouds, on demand and spot.

credentials.py  the form's fields, and where the API is
client.py       REST v2 and GraphQL over httpx; answers.py reads what comes back, in the closed set of provider errors
account.py      the vendor's SDK, loaded at the first check of the credentials and for nothing else
catalog.py      offers from the GPU catalog and the spot prices; cpus.py reads the CPU pods
pods.py         what a pod is created from, and what its JSON means
logs.py         pages of a log stream
provider.py     the adapter
"""
