"""Best stationary mixture of cohorts, compared with the greedy genie."""
