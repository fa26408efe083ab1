"""A stateful RunPod for tests, on 127.0.0.1: REST v2 and GraphQL, over the engine of `providers.fake`.

The engine keeps pods, hides, faults, bills and simulated agents; here is what makes it RunPod.

server.py   serves it
app.py      REST v2: what it takes is validated as the vendor's OpenAPI says, unknown fields are refused
graphql.py  the GraphQL API: accounts, spot prices and spot pods, run by a real GraphQL engine
account.py  what is on sale, and the pods and credentials of the one account
"""
