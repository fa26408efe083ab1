"""A scripted cloud for tests: a stateful server with a fault schedule, simulated agents, and the adapter that uses it.

server.py    the process: `python -m providers.fake.server --port N`
cloud.py     instances, offers and sub-resources, and when a call may see them
billing.py   what the cloud charges, computed without Headrace's code
faults.py    the fault schedule and the journal of calls
app.py       the HTTP API that the adapter speaks; admin.py is the one that tests speak
agent.py     simulated agents, one for each running instance; script.py is what they do
control.py   a client of the admin API
provider.py  the adapter; answers.py maps what the cloud answers
"""
