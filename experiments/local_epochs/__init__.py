"""Four policies with one to ten local epochs, at equal times and at equal budget."""
