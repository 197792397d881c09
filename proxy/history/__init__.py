"""Which part of a conversation is sent on: turns, the grid of cuts, the plan."""
