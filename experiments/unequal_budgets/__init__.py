"""Policies on clients with unequal privacy budgets."""
