"""The read model: tables, transactions, repositories, log store, secret vault. Sync inside, async outside."""
