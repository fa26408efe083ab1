"""Jobs to start from; `headrace demo` runs `train_char_lm.py`."""
