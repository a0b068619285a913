"""A leaderboard as a static site: an overview, a page a task and a model, and the documents that they come from."""
