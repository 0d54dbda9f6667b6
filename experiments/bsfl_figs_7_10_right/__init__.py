"""BSFL Figs. 7 and 10, right: test loss of linear regression against simulated seconds."""
