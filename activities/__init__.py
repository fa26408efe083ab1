"""What workflows ask the world to do. Classes take what they need; `worker.py` wires them once."""
