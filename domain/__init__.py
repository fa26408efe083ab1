"""Pure rules: no I/O, no clock of their own, no framework. Everything else may import from here."""
