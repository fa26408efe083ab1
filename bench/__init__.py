"""What Headrace costs and how fast it is: `python -m bench`."""
