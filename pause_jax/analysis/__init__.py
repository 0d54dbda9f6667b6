"""What is made of results, on the host: metrics, regret, ledgers, tables, figures."""
