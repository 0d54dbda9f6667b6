"""BSFL Figs. 7 and 10, left: regret while a linear model is trained."""
