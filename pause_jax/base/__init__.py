"""The machinery of configs and files; knows nothing of federated learning."""
