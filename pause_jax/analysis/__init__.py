"""What is made of results, on the host: metrics, regret, ledgers, landscapes, tables, figures."""
