"""Clients whose privacy budgets differ: what each policy does with the strict ones."""
