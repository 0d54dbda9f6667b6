"""The best stationary mixture of cohorts, beside the greedy genie."""
